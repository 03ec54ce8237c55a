//! The rows of the page about MMEngine.

use trainer::hooks::{Checkpoint, EarlyStopping, Ema};
use trainer::prelude::*;
use trainer::schedule::{Linear, MultiStep};

use super::program::*;
use super::{Case, Series, written};
use crate::support::scratch;

pub(super) const CASES: &[Case] = &[
    Case::new("max_epochs=n", || Program::new(sgd(), |b| b.epochs(3)).fit()),
    Case::new("IterBasedTrainLoop(max_iters=n)", || Program::new(sgd(), |b| b.epochs(5).max_steps(7)).fit()),
    Case::new("val_interval=n", || {
        Program::new(sgd(), |b| b.epochs(5).validate_every(Every::Epochs(2))).fit_valid()
    }),
    Case::new("OptimWrapper(accumulative_counts=n)", || Program::new(sgd(), |b| b.accumulate(2)).fit()),
    Case::new("clip_grad=dict(max_norm=x)", || Program::new(sgd(), |b| b.clip_grad_norm(0.05)).fit()),
    Case::new("clip_grad=dict(clip_value=x)", || Program::new(sgd(), |b| b.clip_grad_value(0.05)).fit()),
    Case::new("train_loop.stop_training = True", || {
        let stop = |cx: &mut Cx<AfterStep>| {
            if (cx.counters().epoch, cx.counters().batch_idx) == (1, 2) {
                cx.stop("enough");
            }
        };
        Program::new(sgd(), |b| b.epochs(4).on::<AfterStep>("stop", stop)).fit()
    })
    .advised(|| {
        let stop = |cx: &mut Cx<AfterEpoch>| {
            if cx.counters().epoch == 1 {
                cx.stop("enough");
            }
        };
        Program::new(sgd(), |b| b.epochs(4).on::<AfterEpoch>("stop", stop)).fit()
    }),
    Case::new("CheckpointHook(interval=n, max_keep_ckpts=3, save_best=…)", || {
        let folder = scratch("migration-kept");
        let keep = Checkpoint::new(&folder).keep_last(2).keep_best(1, "valid/scripted", Goal::Minimize);
        let seen = Program::new(sgd(), |b| b.epochs(9).hook(keep)).fit_valid();
        with(seen, "epochs", kept(&folder, 5))
    }),
    Case::new("resume=True", || resumed(sgd)),
    Case::new("EarlyStoppingHook", || stopped(0.0)).advised(|| stopped(0.1)),
    Case::new("ParamSchedulerHook", || warmed_up(4)).advised(|| warmed_up(3)),
    Case::new("LoggerHook(interval=n)", || {
        renamed(Program::new(sgd(), |b| b.record_every(Every::Steps(2))).fit(), "recorded", "logged")
    }),
    Case::new("EMAHook", || {
        let mut program = Program::new(sgd(), |b| b.hook(Ema::new(0.9)));
        program.fit_on(train_rows(), None);
        let average = flat(program.trainer.hook::<Ema>().unwrap().average());
        with(program.seen(), "average", average)
    }),
    Case::new("epoch_10.pth", || {
        both(checkpoint("adamw", adamw_of_both()), checkpoint("sgd", sgd_of_both()))
    }),
    Case::new("torch.rand", draws_continue),
];

fn stopped(delta: f64) -> Series {
    let stopping = EarlyStopping::new("valid/scripted", Goal::Minimize).patience(2).min_delta(delta);
    Program::new(sgd(), |b| b.epochs(12).hook(stopping)).fit_valid()
}

/// `LinearLR(start_factor=0.1, begin=0, end=4)` for steps, and `MultiStepLR` for epochs.
fn warmed_up(over: u64) -> Series {
    let schedule = Linear::to(1.0).starting_at(0.1).over(over).times(MultiStep::new([5, 10], 0.5));
    let hook = trainer::hooks::HyperparameterSchedule::lr(schedule);
    Program::new(sgd(), |b| b.epochs(3).hook(hook)).fit()
}

/// Continues a run from a `.pth` file.
fn checkpoint(name: &str, optimizer: impl Optimizer + 'static) -> Series {
    let file = &*written(&format!("{name}.pth"));
    continued(Program::new(optimizer, |b| b), "net.", (file, &["state_dict"]), (file, &["optimizer"]), &NAMES)
}
