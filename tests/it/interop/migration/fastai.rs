//! The rows of the page about fastai.

use trainer::hooks::{EarlyStopping, Freeze, HyperparameterSchedule, ReduceOnPlateau};
use trainer::optim::Group;
use trainer::prelude::*;
use trainer::schedule::{Cosine, OneCycle};

use super::program::*;
use super::{Case, Series, written};

/// The optimizer `Adam` of fastai.
fn adam() -> AdamW {
    let optimizer = AdamW::new(0.01).betas(0.9, 0.99).eps(1e-5).weight_decay(0.01);
    optimizer.group("*.bias", Group::new().weight_decay(0.0))
}

/// Keeps one of the rates of the two groups, which are equal.
fn of_one_group(mut seen: Series) -> Series {
    let rates = seen["rates"].iter().step_by(2).copied().collect();
    seen.insert("rates", rates);
    seen
}

/// Whether this is the third batch of the first epoch.
fn is_third<P>(cx: &Cx<P>) -> bool {
    cx.phase() == Phase::Train && cx.counters().epoch == 0 && cx.counters().batch_idx == 2
}

pub(super) const CASES: &[Case] = &[
    Case::new("learn.fit(n)", || Program::new(sgd(), |b| b.epochs(3)).fit_valid()),
    Case::new("learn.validate()", || {
        let loss = Program::new(sgd(), |b| b).trainer.validate(&mut valid_rows()).unwrap();
        with(Series::new(), "test", vec![loss.metrics["valid/loss"]])
    }),
    Case::new("opt_func=Adam", || Program::new(AdamW::new(0.01), |b| b).fit_valid())
        .advised(|| of_one_group(Program::new(adam(), |b| b).fit_valid())),
    Case::new("learn.recorder.values", || {
        let mut program = Program::new(sgd(), |b| b.epochs(3));
        let history = program.fit_on(train_rows(), Some(valid_rows())).history;
        with(program.seen(), "logged", history["train/loss"].to_vec())
    }),
    Case::new("GradientAccumulation(n_acc)", || Program::new(sgd(), |b| b.accumulate(2)).fit_valid()),
    Case::new("GradientClip(max_norm)", || Program::new(sgd(), |b| b.clip_grad_norm(0.05)).fit_valid()),
    Case::new("ShortEpochCallback(pct)", || {
        Program::new(sgd(), |b| b.limit_train_batches(0.5).limit_valid_batches(0.5)).fit()
    })
    .advised(|| Program::new(sgd(), |b| b.limit_train_batches(4)).fit()),
    Case::new("CancelBatchException", || {
        let skip = |cx: &mut Cx<BeforeStep>| {
            if is_third(cx) {
                cx.skip_batch();
            }
        };
        Program::new(sgd(), |b| b.on::<BeforeStep>("skip", skip)).fit_valid()
    }),
    Case::new("CancelStepException", || {
        Program::new(sgd(), |b| b.hook(SkipStep { drops: false })).fit_valid()
    })
    .advised(|| Program::new(sgd(), |b| b.hook(SkipStep { drops: true })).fit_valid()),
    Case::new("CancelTrainException", || {
        // The count of batches has grown at `after_step`.
        let end = |cx: &mut Cx<AfterStep>| {
            if (cx.counters().epoch, cx.counters().batch_idx) == (0, 3) && cx.phase() == Phase::Train {
                cx.end_epoch();
            }
        };
        Program::new(sgd(), |b| b.on::<AfterStep>("end", end)).fit_valid()
    }),
    Case::new("CancelFitException", || {
        let stop = |cx: &mut Cx<AfterStep>| {
            if cx.counters().optimizer_steps == 3 {
                cx.stop("enough");
            }
        };
        Program::new(sgd(), |b| b.on::<AfterStep>("stop", stop)).fit_valid()
    }),
    Case::new("SaveModelCallback", || best(sgd, false)).advised(|| best(sgd, true)),
    Case::new("EarlyStoppingCallback", || {
        let stopping = EarlyStopping::new("valid/scripted", Goal::Minimize).patience(2);
        Program::new(sgd(), |b| b.epochs(12).hook(stopping)).fit_valid()
    }),
    Case::new("ReduceLROnPlateau(patience=n, factor=x)", || {
        reduced(ReduceOnPlateau::new("valid/scripted", Goal::Minimize).patience(2).factor(0.5))
    })
    .advised(|| {
        let plateau = ReduceOnPlateau::new("valid/scripted", Goal::Minimize).patience(1).factor(0.5);
        reduced(plateau.threshold_abs(0.0))
    }),
    Case::new("fit_one_cycle", || one_cycle(AdamW::new(0.01), OneCycle::new(), false)).advised(|| {
        let cycle = OneCycle::new().pct_start(0.25).final_div_factor(4000.0);
        of_one_group(one_cycle(adam(), cycle, true))
    }),
    Case::new("ParamScheduler", || {
        Program::new(sgd(), |b| b.hook(HyperparameterSchedule::lr(Cosine::to(0.1)))).fit_valid()
    }),
    Case::new("slice(1e-5, 1e-3)", || {
        let optimizer = sgd().layer_decay((1e-2 / 1e-1_f64).powf(1.0), ["fc1.*", "fc2.*"]);
        Program::new(optimizer, |b| b).fit_valid()
    }),
    Case::new("freeze_to", || {
        Program::new(sgd(), |b| b.hook(Freeze::new("fc1.*").thaw_at(1, "fc1.*"))).fit_valid()
    }),
    Case::new("set_seed(n, reproducible=True)", random_numbers),
    Case::new("learn.save(file)", || {
        let files = ["fastai.pth", "fastai-opt.pt"].map(written);
        of_one_group(continued(
            Program::new(adam(), |b| b),
            "",
            (&files[0], &["model"]),
            (&files[1], &[]),
            &NAMES,
        ))
    }),
    Case::new("torch.rand", draws_continue),
];

/// Skips the step of the third batch.
struct SkipStep {
    drops: bool,
}

#[hook]
impl SkipStep {
    fn skip(&mut self, cx: &mut Cx<OptStep>, next: Next<OptStep>) -> Result<Done> {
        if !is_third(cx) {
            return next.run(cx);
        }
        if self.drops {
            cx.drop_grads()?;
        }
        Ok(next.skip())
    }
}

fn reduced(plateau: ReduceOnPlateau) -> Series {
    Program::new(sgd(), |b| b.epochs(12).hook(plateau)).fit_valid()
}

fn one_cycle(optimizer: AdamW, cycle: OneCycle, with_momentum: bool) -> Series {
    Program::new(optimizer, |b| {
        let b = b.hook(HyperparameterSchedule::lr(cycle));
        if with_momentum { b.hook(HyperparameterSchedule::momentum(cycle.momentum(0.85, 0.95))) } else { b }
    })
    .fit_valid()
}
