//! The rows of the page about trainer-tools.

use std::sync::{Arc, Mutex};

use trainer::hooks::{Checkpoint, Ema, HyperparameterSchedule};
use trainer::prelude::*;
use trainer::schedule::{Cosine, StepDecay};

use super::program::*;
use super::{Case, Series, written};
use crate::support::scratch;

pub(super) const CASES: &[Case] = &[
    Case::new("epochs=n", || Program::new(sgd(), |b| b.epochs(3)).fit()),
    Case::new("is_grad_accum_boundary", || {
        let boundaries: Arc<Mutex<Vec<f64>>> = Arc::default();
        let note = boundaries.clone();
        let seen = Program::new(sgd(), |b| {
            b.accumulate(2).on::<AfterBackward>("note", move |cx| {
                note.lock().unwrap().push(f64::from(u8::from(cx.is_boundary())));
            })
        })
        .fit();
        let boundaries = boundaries.lock().unwrap().clone();
        with(seen, "boundaries", boundaries)
    }),
    Case::new("StepState", || {
        let counts: Arc<Mutex<[Vec<f64>; 3]>> = Arc::default();
        let note = counts.clone();
        let mut seen = Program::new(sgd(), |b| {
            b.on::<AfterStep>("note", move |cx| {
                let now = cx.counters();
                for (column, count) in
                    note.lock().unwrap().iter_mut().zip([now.batch_idx, now.optimizer_steps, now.epoch])
                {
                    column.push(count as f64);
                }
            })
        })
        .fit();
        seen.extend(["batch", "step", "epoch"].into_iter().zip(counts.lock().unwrap().clone()));
        seen
    }),
    Case::new("GradientAccumulationHook(steps=n)", || Program::new(sgd(), |b| b.accumulate(2)).fit())
        .advised(|| divided_by_the_window(2)),
    Case::new("GradClipHook(max_norm=x)", || {
        Program::new(sgd(), |b| b.accumulate(5).clip_grad_norm(0.05)).fit()
    }),
    Case::new("MetricsHook", || logged(8, "train/loss")).advised(|| {
        let unweighted = |cx: &mut Cx<AfterStep>| cx.log_weighted("unweighted", cx.step_loss().unwrap(), 1.0);
        let mut program = Program::new(sgd(), |b| b.on::<AfterStep>("unweighted", unweighted));
        let history = program.fit_on(loader(rows(0, 20), 8), None).history;
        with(program.seen(), "logged", history["train/unweighted"].to_vec())
    }),
    Case::new("LRStats", || {
        let schedule = HyperparameterSchedule::lr(StepDecay::new(2, 0.5));
        let seen = Program::new(sgd(), |b| b.hook(schedule)).fit();
        let rates = seen["rates"].clone();
        with(seen, "logged", rates)
    }),
    Case::new("LRSchedulerHook(…)", || scheduled(sgd(), Cosine::to(0.0))),
    Case::new("EMAHook", || {
        let mut program = Program::new(sgd(), |b| b.hook(Ema::new(0.9)));
        program.fit_on(train_rows(), None);
        let average = flat(program.trainer.hook::<Ema>().unwrap().average());
        with(program.seen(), "average", average)
    }),
    Case::new("CheckpointHook(…)", || {
        let folder = scratch("migration-limit");
        let keep = Checkpoint::new(&folder).every(Every::Steps(5)).keep_last(2);
        let seen: Series = Program::new(sgd(), |b| b.epochs(4).hook(keep)).fit();
        with(seen, "epochs", kept(&folder, 5))
    }),
    Case::new("checkpoint_step_10.pt", || {
        both(checkpoint("adamw", adamw_of_both()), checkpoint("sgd", sgd_of_both()))
    }),
    Case::new("CheckpointHook(resume_path=…)", || resumed(sgd)),
    Case::new("torch.rand", draws_continue),
];

/// Continues a run from a `.pt` file.
fn checkpoint(name: &str, optimizer: impl Optimizer + 'static) -> Series {
    let file = &*written(&format!("trainer-tools-{name}.pt"));
    continued(Program::new(optimizer, |b| b), "", (file, &["model"]), (file, &["opt"]), &NAMES)
}
