//! Measures the cost of firing a point without hooks and with 1, 10 and 100, compared to a
//! hand-written loop; of running an operation with and without a hook around it; and of building a
//! trainer with 10,000 hooks.

#![allow(missing_docs, clippy::unit_arg)]

mod ratio;

use std::hint::black_box;

use ratio::{Case, compare};
use trainer::__private::{fire, operate};
use trainer::TrainerBuilder;
use trainer::moment::{AtOperation, AtPoint};
use trainer::prelude::*;

/// Repetitions within each measured call, so that the cost of the call itself does not matter.
const INNER: u32 = 64;

/// Defines free functions as hooks at a point, each in its own module.
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
hooks! { after_step AfterStep:
    h00 h01 h02 h03 h04 h05 h06 h07 h08 h09 h10 h11 h12 h13 h14 h15 h16 h17 h18 h19
    h20 h21 h22 h23 h24 h25 h26 h27 h28 h29 h30 h31 h32 h33 h34 h35 h36 h37 h38 h39
    h40 h41 h42 h43 h44 h45 h46 h47 h48 h49 h50 h51 h52 h53 h54 h55 h56 h57 h58 h59
    h60 h61 h62 h63 h64 h65 h66 h67 h68 h69 h70 h71 h72 h73 h74 h75 h76 h77 h78 h79
    h80 h81 h82 h83 h84 h85 h86 h87 h88 h89 h90 h91 h92 h93 h94 h95 h96 h97 h98 h99
}

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

/// The hook that many hooks must run after.
struct Anchor;

#[hook(ord = 9)]
impl Anchor {
    fn setup(&mut self, _: &Cx<Setup>) {}
}

/// One of many hooks with an order constraint.
struct Late;

#[hook(after = Anchor)]
impl Late {
    fn setup(&mut self, _: &Cx<Setup>) {}
}

/// One of many hooks without an order constraint.
struct Plain;

#[hook]
impl Plain {
    fn setup(&mut self, _: &Cx<Setup>) {}
}

/// The state of the hand-written loop.
#[derive(Default)]
struct State {
    step: Counters,
}

/// The function that the hand-written loop calls.
fn by_hand(state: &mut State) {
    black_box(state.step.epoch);
}

fn main() -> Result<()> {
    let mut stateful = builder();
    for n in 0..10 {
        stateful = stateful.hook(Stateful(n));
    }
    let mut trainer = stateful.build()?;

    let mut state = State::default();
    for (n, title) in
        [(0, "an empty point"), (1, "1 free hook"), (10, "10 free hooks"), (100, "100 free hooks")]
    {
        let hooks: Vec<fn(&mut State)> = black_box(vec![by_hand; n]);
        let calls = 40_000 / u32::try_from(n.max(1)).unwrap_or(1);
        let by_hand = || {
            for _ in 0..INNER {
                black_box(&hooks).iter().for_each(|hook| hook(black_box(&mut state)));
            }
        };
        let baseline: Case<'_> = ("Vec<fn(&mut State)>", Box::new(by_hand));
        let ours: Case<'_> = match n {
            0 => ("fire", fires::<BeforeFit, _>(&mut trainer)),
            1 => ("fire", fires::<AfterPred, _>(&mut trainer)),
            10 => ("fire", fires::<AfterLoss, _>(&mut trainer)),
            _ => ("fire", fires::<AfterStep, _>(&mut trainer)),
        };
        compare(title, calls, INNER, &mut [baseline, ours]);
    }
    compare(
        "10 hooks with state, against 10 without",
        4_000,
        INNER,
        &mut [
            ("free functions", fires::<AfterLoss, _>(&mut rebuilt()?)),
            ("stateful", fires::<BeforeBackward, _>(&mut trainer)),
        ],
    );
    compare(
        "an operation, without and with a hook around it",
        20_000,
        INNER,
        &mut [
            (
                "its body alone",
                Box::new(|| (0..INNER).for_each(|_| by_hand(black_box(&mut State::default())))),
            ),
            ("no hook", operates::<Loss, _>(&mut rebuilt()?)),
            ("1 hook", operates::<ZeroGrad, _>(&mut trainer)),
        ],
    );
    let build = |hooks: usize, late: usize| {
        let mut builder = builder().discover(Discover::None).hook(Anchor);
        for nth in 1..hooks {
            builder = if nth <= late { builder.hook(Late) } else { builder.hook(Plain) };
        }
        drop(black_box(builder.build().expect("an order")));
    };
    compare(
        "building a trainer",
        1,
        1,
        &mut [
            ("with 1 hook", Box::new(|| build(1, 0))),
            ("with 10,000 hooks", Box::new(|| build(10_000, 0))),
            ("with 10,000 hooks and 1,000 constraints", Box::new(|| build(10_000, 1_000))),
        ],
    );
    Ok(())
}

/// Returns a closure that runs an operation repeatedly.
fn operates<'a, O: AtOperation, T>(trainer: &'a mut Trainer<T>) -> Box<dyn FnMut() + 'a> {
    Box::new(move || {
        for _ in 0..INNER {
            operate::<O, T>(black_box(trainer)).expect("no hook fails");
        }
    })
}

/// Returns a closure that fires a point repeatedly.
fn fires<'a, P: AtPoint, T>(trainer: &'a mut Trainer<T>) -> Box<dyn FnMut() + 'a> {
    Box::new(|| {
        for _ in 0..INNER {
            fire::<P, T>(black_box(trainer)).expect("no hook fails");
        }
    })
}

type Task = Supervised<nn::Linear, fn(&Tensor, &Tensor) -> Tensor>;

fn builder() -> TrainerBuilder<Task> {
    let vs = nn::VarStore::new(Device::Cpu);
    let net = nn::linear(&vs.root() / "fc", 4, 2, Default::default());
    Trainer::builder(Supervised::new(vs, net, |pred, _| pred.sum(Kind::Float)))
}

/// Builds another trainer that has only the discovered hooks.
fn rebuilt() -> Result<Trainer<Task>> {
    builder().build()
}
