//! Runs one operation of the trainer a given number of times, for `make instructions`, which counts
//! the instructions of one with Valgrind: `instructions CASE COUNT`. Without arguments, as in
//! `cargo bench`, it does nothing.

#![allow(missing_docs)]

mod mlp;

use std::hint::black_box;

use mlp::Mlp;
use trainer::__private::{fire, operate};
use trainer::TrainerBuilder;
use trainer::data::from_fn;
use trainer::moment::{AtOperation, AtPoint};
use trainer::prelude::*;

/// Defines a free function as a hook, in its own module.
macro_rules! hooks {
    ($at:ident $marker:ident: $($name:ident)*) => {$(
        mod $name {
            use trainer::prelude::*;
            #[hook]
            fn hook(cx: &Cx<$marker>) {
                std::hint::black_box(cx.counters().epoch);
            }
        }
    )*};
}

hooks! { after_pred AfterPred: one }
hooks! { after_loss AfterLoss: t0 t1 t2 t3 t4 t5 t6 t7 t8 t9 }

/// A hook with state.
struct Stateful(u64);

#[hook]
impl Stateful {
    fn before_backward(&mut self, cx: &Cx<BeforeBackward>) {
        self.0 = self.0.wrapping_add(black_box(cx.counters().epoch));
    }
}

/// A hook around an operation.
#[hook]
fn around(cx: &mut Cx<ZeroGrad>, next: Next<ZeroGrad>) -> Result<Done> {
    next.run(cx)
}

fn builder() -> TrainerBuilder<Mlp> {
    Trainer::builder(mlp::task())
}

/// Trains for `count` steps, without the hooks of this file.
fn steps(builder: TrainerBuilder<Mlp>, count: u64) -> Result<()> {
    train(builder, mlp::batch(), count)
}

/// Trains a convolutional network for `count` steps, without the hooks of this file.
fn convolutions(count: u64, is_checked: bool) -> Result<()> {
    let vs = nn::VarStore::new(Device::Cpu);
    let root = vs.root();
    let conv = |name, from, to| nn::conv2d(&root / name, from, to, 3, Default::default());
    let net = nn::seq()
        .add(conv("conv1", 1, 8))
        .add_fn(|xs| xs.relu().max_pool2d_default(2))
        .add(conv("conv2", 8, 16))
        .add_fn(|xs| xs.relu().max_pool2d_default(2).flat_view())
        .add(nn::linear(&root / "fc", 16 * 5 * 5, 10, Default::default()));
    let builder = Trainer::builder(Supervised::new(vs, net, mlp::cross_entropy)).optimizer(AdamW::new(1e-3));
    let images = Tensor::randn([32, 1, 28, 28], (Kind::Float, Device::Cpu));
    let labels = Tensor::randint(10, [32], (Kind::Int64, Device::Cpu));
    let checked = if is_checked { builder.hook(trainer::hooks::Checkup::default()) } else { builder };
    train(checked, (images, labels), count)
}

fn train<T: Task<Batch = (Tensor, Tensor)>>(
    builder: TrainerBuilder<T>,
    (inputs, labels): (Tensor, Tensor),
    count: u64,
) -> Result<()> {
    let mut loader = from_fn(|_| (0..count).map(|_| (inputs.shallow_clone(), labels.shallow_clone())));
    builder.discover(Discover::None).build()?.fit(&mut loader, None).map(drop)
}

fn fires<P: AtPoint>(builder: TrainerBuilder<Mlp>, count: u64) -> Result<()> {
    let mut trainer = builder.build()?;
    (0..count).try_for_each(|_| fire::<P, _>(black_box(&mut trainer)))
}

fn operates<O: AtOperation>(count: u64) -> Result<()> {
    let mut trainer = builder().build()?;
    (0..count).try_for_each(|_| operate::<O, _>(black_box(&mut trainer)).map(drop))
}

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let (Some(case), Some(Ok(count))) = (arguments.next(), arguments.next().map(|count| count.parse()))
    else {
        return Ok(());
    };
    tch::set_num_threads(1);
    tch::manual_seed(0);
    let adamw = || builder().optimizer(AdamW::new(1e-3));
    match &*case {
        "step-sgd" => steps(builder().optimizer(Sgd::new(1e-3)), count),
        "step-adamw" => steps(adamw(), count),
        "step-checkup" => steps(adamw().hook(trainer::hooks::Checkup::default()), count),
        "convolutions" => convolutions(count, false),
        "convolutions-checkup" => convolutions(count, true),
        "step-logging" => steps(adamw().on::<AfterStep>("log", |cx| cx.log("one", 1.0)), count),
        "step-tape" => {
            let path = std::env::temp_dir().join(format!("trainer-instructions-{}.tape", std::process::id()));
            steps(adamw().tape(trainer::Tape::steps(100).at(path)), count)
        }
        "point-0" => fires::<BeforeFit>(builder(), count),
        "point-1" => fires::<AfterPred>(builder(), count),
        "point-10" => fires::<AfterLoss>(builder(), count),
        "point-10-state" => {
            let hooks = (0..10).fold(builder(), |builder, nth| builder.hook(Stateful(nth)));
            fires::<BeforeBackward>(hooks, count)
        }
        "operation-0" => operates::<Loss>(count),
        "operation-1" => operates::<ZeroGrad>(count),
        other => panic!("no case is named `{other}`"),
    }
}
