//! The rows of the page about PyTorch Lightning.

use trainer::data::NamedLoaders;
use trainer::hooks::{Checkpoint, EarlyStopping, Ema, Freeze, HyperparameterSchedule, Swa};
use trainer::prelude::*;
use trainer::schedule::StepDecay;

use super::program::*;
use super::{Case, Series, written};
use crate::support::scratch;

pub(super) const CASES: &[Case] = &[
    Case::new("max_epochs=n", || Program::new(sgd(), |b| b.epochs(3)).fit()),
    Case::new("min_epochs=n", || {
        let stop = |b: trainer::TrainerBuilder<Model>| {
            b.on::<AfterEpoch>("stop", |cx| {
                if cx.counters().epoch == 0 {
                    cx.stop("enough");
                }
            })
        };
        Program::new(sgd(), |b| stop(b.epochs(5).min_epochs(3))).fit()
    }),
    Case::new("max_steps=n", || Program::new(sgd(), |b| b.epochs(5).max_steps(7)).fit()),
    Case::new("limit_train_batches=x", || Program::new(sgd(), |b| b.limit_train_batches(0.5)).fit()),
    Case::new("limit_val_batches=x", || Program::new(sgd(), |b| b.limit_valid_batches(0.5)).fit_valid()),
    Case::new("limit_test_batches=x", || {
        let mut program = Program::new(sgd(), |b| b.limit_test_batches(1));
        let summary = program.trainer.test(&mut train_rows()).unwrap();
        with(program.seen(), "test", vec![summary.metrics["test/loss"]])
    }),
    Case::new("overfit_batches=x", || Program::new(sgd(), |b| b.overfit_batches(2)).fit_valid()),
    Case::new("fast_dev_run=n", || Program::new(sgd(), |b| b.fast_dev_run(2)).fit_valid()),
    Case::new("check_val_every_n_epoch=n", || {
        Program::new(sgd(), |b| b.epochs(5).validate_every(Every::Epochs(2))).fit_valid()
    }),
    Case::new("val_check_interval=0.25", || {
        Program::new(sgd(), |b| b.validate_every(Every::Fraction(0.25))).fit_valid()
    })
    .advised(|| Program::new(sgd(), |b| b.validate_every(Every::Steps(1))).fit_valid()),
    Case::new("val_check_interval=n", || {
        Program::new(sgd(), |b| b.validate_every(Every::Steps(3))).fit_valid()
    }),
    Case::new("a list of `val_dataloaders`, `dataloader_idx`", || {
        let mut program = Program::new(sgd(), |b| b);
        let mut valid = NamedLoaders::new().add("0", valid_rows()).add("1", loader(rows(28, 6), 4));
        let history = program.trainer.fit(&mut train_rows(), Some(&mut valid)).unwrap().history;
        let [first, second] = [&history["valid/0/loss"], &history["valid/1/loss"]];
        with(program.seen(), "valid", vec![first[0], second[0], first[1], second[1]])
    }),
    Case::new("num_sanity_val_steps=2", || Program::new(sgd(), |b| b.sanity_batches(1)).fit_valid()),
    Case::new("accumulate_grad_batches=n", || Program::new(sgd(), |b| b.accumulate(2)).fit())
        .advised(|| divided_by_the_window(2)),
    Case::new("GradientAccumulationScheduler({4: 2})", || {
        Program::new(sgd(), |b| b.epochs(3).accumulate_from(1, 5)).fit()
    }),
    Case::new("gradient_clip_val=x", || Program::new(sgd(), |b| b.clip_grad_norm(0.05)).fit()),
    Case::new("gradient_clip_algorithm=\"value\"", || Program::new(sgd(), |b| b.clip_grad_value(0.05)).fit()),
    Case::new("StochasticWeightAveraging(swa_epoch_start=n)", || averaged(4, 1)).advised(|| {
        let mut seen = averaged(3, 0);
        // The last epoch changes no average.
        let all = averaged(4, 0);
        for name in ["losses", "weights", "rates", "steps"] {
            seen.insert(name, all[name].clone());
        }
        seen
    }),
    Case::new("its last epoch, which updates batch norm", || batch_norm_updated(4, 1)).advised(|| {
        let statistics = batch_norm_updated(3, 0)["statistics"].clone();
        with(Series::new(), "statistics", statistics)
    }),
    Case::new("WeightAveraging", || {
        let mut program = Program::new(sgd(), |b| b.hook(Ema::new(0.9)));
        program.fit_on(train_rows(), None);
        let average = flat(program.trainer.hook::<Ema>().unwrap().average());
        with(program.seen(), "average", average)
    }),
    Case::new("seed_everything(n)", random_numbers),
    Case::new("log(name, value)", || logged(8, "train/loss")),
    Case::new("log(…, on_step=True, on_epoch=True)", || logged(8, "train/loss")),
    Case::new("log(…, reduce_fx=\"max\")", || logged(4, "train/largest")),
    Case::new("log_every_n_steps=50", || {
        let program = Program::new(sgd(), |b| b.record_every(Every::Steps(2)));
        renamed(program.fit(), "recorded", "logged")
    })
    .advised(|| {
        let mut seen = Program::new(sgd(), |b| b.record_every(Every::Steps(1))).fit();
        let every_second = seen["recorded"].iter().skip(1).step_by(2).copied().collect();
        seen.insert("logged", every_second);
        seen
    }),
    Case::new("TensorBoardLogger", || Program::new(sgd(), |b| b.record_every(Every::Steps(2))).fit()),
    Case::new("LearningRateMonitor", || {
        let schedule = HyperparameterSchedule::lr(StepDecay::new(2, 0.5));
        let seen = Program::new(sgd(), |b| b.hook(schedule)).fit();
        let rates = seen["rates"].clone();
        with(seen, "logged", rates)
    }),
    Case::new("callback_metrics", || {
        let mut program = Program::new(sgd(), |b| b);
        let summary = program.fit_on(train_rows(), Some(valid_rows()));
        with(program.seen(), "logged", vec![summary.metrics["valid/loss"]])
    }),
    Case::new("should_stop = True", || {
        let stop = |cx: &mut Cx<AfterStep>| {
            if (cx.counters().epoch, cx.counters().batch_idx) == (1, 2) {
                cx.stop("enough");
            }
        };
        Program::new(sgd(), |b| b.epochs(4).on::<AfterStep>("stop", stop)).fit()
    }),
    Case::new("return -1", || end_epoch(false)).advised(|| end_epoch(true)),
    Case::new("ModelCheckpoint(dirpath, save_top_k=2, monitor=\"val_loss\")", || {
        let folder = scratch("migration-checkpoints");
        let keep = Checkpoint::new(&folder).keep_best(2, "valid/scripted", Goal::Minimize);
        let seen = Program::new(sgd(), |b| b.epochs(9).hook(keep)).fit_valid();
        with(seen, "epochs", kept(&folder, 5))
    }),
    Case::new("fit(ckpt_path=\"last\")", || resumed(sgd)),
    Case::new("test(ckpt_path=\"best\")", || {
        let keep = Checkpoint::new(scratch("migration-best")).keep_best(1, "valid/scripted", Goal::Minimize);
        let mut program = Program::new(sgd(), |b| b.epochs(3).hook(keep));
        program.fit_on(train_rows(), Some(valid_rows()));
        let (best, _) = program.trainer.hook::<Checkpoint>().unwrap().best().unwrap();
        program.trainer.load_weights(best, &trainer::checkpoint::LoadWeights::new()).unwrap();
        let test = program.trainer.test(&mut train_rows()).unwrap().metrics["test/loss"];
        with(program.seen(), "test", vec![test])
    }),
    Case::new("EarlyStopping(\"val_loss\", patience=3)", || {
        let stopping = EarlyStopping::new("valid/scripted", Goal::Minimize).patience(2);
        Program::new(sgd(), |b| b.epochs(12).hook(stopping)).fit_valid()
    }),
    Case::new("BackboneFinetuning", || {
        Program::new(sgd(), |b| b.epochs(3).hook(Freeze::new("fc1.*").thaw_at(1, "fc1.*"))).fit()
    }),
    Case::new("lr_scheduler_config[\"interval\"]=\"epoch\"", || {
        let schedule = HyperparameterSchedule::lr(StepDecay::new(1, 0.5)).by_epoch(true);
        Program::new(sgd(), |b| b.epochs(3).hook(schedule)).fit()
    }),
    Case::new("optimizer_states", || {
        both(checkpoint("adamw", adamw_of_both()), checkpoint("sgd", sgd_of_both()))
    }),
    Case::new("torch.rand", draws_continue),
];

fn averaged(epochs: u64, from: u64) -> Series {
    let mut program = Program::new(sgd(), |b| b.epochs(epochs).hook(Swa::from_epoch(from)));
    program.fit_on(train_rows(), None);
    let average = flat(program.trainer.hook::<Swa>().unwrap().average());
    with(program.seen(), "average", average)
}

fn end_epoch(skips: bool) -> Series {
    let end = move |cx: &mut Cx<BeforeStep>| {
        if cx.counters().batch_idx == 2 {
            cx.end_epoch();
            if skips {
                cx.skip_batch();
            }
        }
    };
    Program::new(sgd(), |b| b.on::<BeforeStep>("end", end)).fit()
}

/// Continues a run from a `.ckpt` file.
fn checkpoint(name: &str, optimizer: impl Optimizer + 'static) -> Series {
    let file = &*written(&format!("{name}.ckpt"));
    let rest = |step: u64| StepDecay::new(3, 0.5).factor(step + 10, None).unwrap();
    let program = Program::new(optimizer, |b| b.hook(HyperparameterSchedule::lr(rest)));
    continued(program, "net.", (file, &["state_dict"]), (file, &["optimizer_states", "0"]), &NAMES)
}
