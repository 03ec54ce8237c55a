//! Measures the overhead of profiling: for a point with hooks, for an operation, and for a run
//! whose steps do almost nothing.

#![allow(missing_docs)]

mod ratio;

use std::hint::black_box;

use ratio::compare;
use trainer::__private::{fire, operate};
use trainer::data::from_fn;
use trainer::moment::{AtOperation, AtPoint};
use trainer::prelude::*;

/// Repetitions within each measured call, so that the cost of the call itself does not matter.
const INNER: u32 = 64;

/// Batches in each measured run.
const BATCHES: u32 = 5_000;

/// A hook at a point. Each trainer has ten of these.
struct Counter(u64);

#[hook]
impl Counter {
    fn after_loss(&mut self, cx: &Cx<AfterLoss>) {
        self.0 = self.0.wrapping_add(black_box(cx.counters().epoch));
    }
}

/// A hook around an operation.
struct Around;

#[hook]
impl Around {
    fn around(&mut self, cx: &mut Cx<ZeroGrad>, next: Next<ZeroGrad>) -> Result<Done> {
        next.run(cx)
    }
}

/// A task that computes nothing.
struct Nothing(nn::VarStore);

impl Task for Nothing {
    type Batch = ();
    type Pred = ();

    fn vars(&self) -> &nn::VarStore {
        &self.0
    }
    fn pred(&mut self, (): &(), _: Mode) -> Result<()> {
        Ok(())
    }
    fn loss(&mut self, (): &(), (): &()) -> Result<Tensor> {
        Ok(Tensor::from(0.0))
    }
}

fn trainer(is_profiled: bool) -> Result<Trainer<Nothing>> {
    let vars = nn::VarStore::new(Device::Cpu);
    let mut builder = Trainer::builder(Nothing(vars)).profile(is_profiled).hook(Around);
    for nth in 0..10 {
        builder = builder.hook(Counter(nth));
    }
    builder.build()
}

fn main() -> Result<()> {
    let [mut off, mut on] = [trainer(false)?, trainer(true)?];
    // Outside of an entry point nothing resets the recorder: its trace is full after a million
    // spans, and later spans are only counted.
    compare(
        "10 hooks at a point (10 spans)",
        4_000,
        INNER,
        &mut [("off", fires::<AfterLoss>(&mut off)), ("on", fires::<AfterLoss>(&mut on))],
    );
    compare(
        "an operation (1 span)",
        20_000,
        INNER,
        &mut [("off", operates::<Loss>(&mut off)), ("on", operates::<Loss>(&mut on))],
    );
    compare(
        "an operation with a hook around it (3 spans)",
        20_000,
        INNER,
        &mut [("off", operates::<ZeroGrad>(&mut off)), ("on", operates::<ZeroGrad>(&mut on))],
    );
    compare(
        "a predict_step that computes nothing (4 spans)",
        1,
        BATCHES,
        &mut [("off", predicts(&mut off)), ("on", predicts(&mut on))],
    );
    Ok(())
}

/// Returns a closure that fires a point repeatedly.
fn fires<'a, P: AtPoint>(trainer: &'a mut Trainer<Nothing>) -> Box<dyn FnMut() + 'a> {
    Box::new(|| {
        for _ in 0..INNER {
            fire::<P, _>(black_box(trainer)).expect("no hook fails");
        }
    })
}

/// Returns a closure that runs an operation repeatedly.
fn operates<'a, O: AtOperation>(trainer: &'a mut Trainer<Nothing>) -> Box<dyn FnMut() + 'a> {
    Box::new(|| {
        for _ in 0..INNER {
            operate::<O, _>(black_box(trainer)).expect("no hook fails");
        }
    })
}

/// Returns a closure that runs a pass over the data.
fn predicts<'a>(trainer: &'a mut Trainer<Nothing>) -> Box<dyn FnMut() + 'a> {
    let mut data = from_fn(|_| (0..BATCHES).map(|_| ()));
    Box::new(move || {
        trainer.predict_each(&mut data, |()| Ok(())).expect("nothing fails");
    })
}
