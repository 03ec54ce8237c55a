//! Measures the cost of calling a layer without a name, a named layer without hooks, and a named
//! layer with one hook; and the cost of a batch with an empty forward pass.

#![allow(missing_docs)]

mod ratio;

use std::cell::Cell;
use std::fmt;
use std::hint::black_box;

use ratio::{Case, compare};
use trainer::TrainerBuilder;
use trainer::data::from_fn;
use trainer::modules::Named;
use trainer::prelude::*;

/// Repetitions within each measured call.
const INNER: u32 = 64;

/// A layer whose forward pass costs nothing: it returns the tensor that it holds.
struct Passing(Cell<Option<Tensor>>);

impl fmt::Debug for Passing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Passing")
    }
}

impl nn::Module for Passing {
    fn forward(&self, _: &Tensor) -> Tensor {
        self.0.take().expect("each call puts its output back")
    }
}

/// Measures its layers in a forward pass, while hooks observe them.
struct Layers {
    vs: nn::VarStore,
    plain: Passing,
    other: Named<Passing>,
    hooked: Named<Passing>,
    title: &'static str,
}

impl Layers {
    fn new(title: &'static str) -> Self {
        let layer = || Passing(Cell::new(Some(Tensor::from(1.0))));
        Layers {
            vs: nn::VarStore::new(Device::Cpu),
            plain: layer(),
            other: layer().named("other"),
            hooked: layer().named("hooked"),
            title,
        }
    }
}

/// Returns a closure that calls a layer repeatedly, through a trait object as `nn::Sequential`
/// does.
fn calls<'a>(
    layer: &'a dyn nn::Module,
    cell: &'a Cell<Option<Tensor>>,
    xs: &'a Tensor,
) -> Box<dyn FnMut() + 'a> {
    Box::new(move || {
        for _ in 0..INNER {
            cell.set(Some(black_box(layer).forward(black_box(xs))));
        }
    })
}

impl Task for Layers {
    type Batch = Tensor;
    type Pred = ();

    fn vars(&self) -> &nn::VarStore {
        &self.vs
    }

    fn pred(&mut self, xs: &Tensor, _: Mode) -> Result<()> {
        let Layers { plain, other, hooked, title, .. } = self;
        let mut cases: [Case<'_>; 3] = [
            ("without a name", calls(plain, &plain.0, xs)),
            ("named, without a hook", calls(other, &other.0, xs)),
            ("named, with the hook if there is one", calls(hooked, &hooked.0, xs)),
        ];
        compare(title, 4_000, INNER, &mut cases);
        Ok(())
    }

    fn loss(&mut self, (): &(), _: &Tensor) -> Result<Tensor> {
        Ok(Tensor::from(0.0))
    }
}

/// A hook after a module.
struct After(u64);

#[hook]
impl After {
    #[hook(of = "hooked")]
    fn after_module_forward(&mut self, cx: &Cx<AfterModuleForward>) {
        self.0 = self.0.wrapping_add(black_box(cx.counters().epoch));
    }
}

/// A hook around a module.
struct Around;

#[hook]
impl Around {
    #[hook(of = "hooked")]
    fn around(&mut self, cx: &mut Cx<ModuleForward>, next: Next<ModuleForward>) -> Result<Done> {
        next.run(cx)
    }
}

/// A task without any computation.
struct Nothing(nn::VarStore);

impl Task for Nothing {
    type Batch = Vec<Tensor>;
    type Pred = ();

    fn vars(&self) -> &nn::VarStore {
        &self.0
    }

    fn pred(&mut self, _: &Self::Batch, _: Mode) -> Result<()> {
        Ok(())
    }

    fn loss(&mut self, (): &(), _: &Self::Batch) -> Result<Tensor> {
        Ok(Tensor::from(0.0))
    }
}

const BATCHES: u32 = 20_000;

/// Returns a closure that predicts batches of a task without any computation.
fn predicts(trainer: &mut Trainer<Nothing>) -> Box<dyn FnMut() + '_> {
    Box::new(|| {
        let mut data = from_fn(|_| (0..BATCHES).map(|_| Vec::<Tensor>::new()));
        trainer.predict_each(&mut data, |()| Ok(())).expect("no hook fails");
    })
}

fn main() -> Result<()> {
    tch::set_num_threads(1);
    let measure = |builder: TrainerBuilder<Layers>| -> Result<()> {
        let mut trainer = builder.discover(Discover::None).build()?;
        trainer.predict_each(&mut from_fn(|_| [Tensor::from(1.0)]), |()| Ok(())).map(drop)
    };
    measure(Trainer::builder(Layers::new("a layer, without any hook at a module")))?;
    measure(Trainer::builder(Layers::new("a layer, with a hook after one of them")).hook(After(0)))?;
    measure(Trainer::builder(Layers::new("a layer, with a hook around one of them")).hook(Around))?;

    let builder = || Trainer::builder(Nothing(nn::VarStore::new(Device::Cpu))).discover(Discover::None);
    let (mut plain, mut observed) =
        (builder().build()?, builder().on::<AfterModuleForward>("none", |_| {}).build()?);
    let by_hand = || {
        for _ in 0..BATCHES {
            drop(black_box(Vec::<Tensor>::new()));
        }
    };
    compare(
        "a batch of prediction, with an empty forward pass",
        1,
        BATCHES,
        &mut [
            ("creating the batch", Box::new(by_hand)),
            ("predict_step", predicts(&mut plain)),
            ("predict_step, with a hook at modules", predicts(&mut observed)),
        ],
    );
    Ok(())
}
