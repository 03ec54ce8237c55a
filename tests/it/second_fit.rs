//! What a second `fit` of one trainer begins anew, and what it keeps: the table of the guide, hook
//! by hook.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};

use trainer::TrainerBuilder;
use trainer::hooks::{
    Amp, Checkpoint, DeadUnits, EarlyStopping, Ema, FeatureRecorder, FieldSchedule, Freeze,
    HyperparameterSchedule, NanGuard, ReduceOnPlateau, SpikeGuard, Swa,
};
use trainer::metrics::{Accuracy, MetricHook};
use trainer::prelude::*;
use trainer::schedule::Linear;

use crate::amp::elementwise;
use crate::model::{self, rows};
use crate::support::scratch;

fn source(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../trainer").join(path)).unwrap()
}

fn files(folder: &Path, found: &mut Vec<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, found);
        } else {
            found.push(fs::read_to_string(path).unwrap());
        }
    }
}

/// Returns the names of the built-in hooks that save a state, from their source.
fn with_state() -> BTreeSet<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../trainer/src");
    let mut sources = Vec::new();
    for folder in ["hooks", "loggers", "metrics"] {
        files(&root.join(folder), &mut sources);
    }
    let mut names = BTreeSet::new();
    for text in sources {
        let name = |rest: &str| {
            let own = rest.trim_start_matches(|letter| letter != '>').strip_prefix("> ");
            let own = if rest.starts_with('<') { own.unwrap_or(rest) } else { rest.trim_start() };
            own.split(|letter: char| !letter.is_alphanumeric() && letter != '_')
                .next()
                .unwrap_or_default()
                .to_owned()
        };
        for block in text.split("\n#[hook(").skip(1) {
            let Some((keys, rest)) = block.split_once(")]\nimpl") else { continue };
            let has_state = keys.split([',', ' ']).any(|key| key == "state" || key.starts_with("self."));
            if has_state && keys.contains("state") && !keys.contains('\n') {
                names.insert(name(rest));
            }
        }
        names.extend(text.split("\naveraging! {\nimpl ").skip(1).map(|rest| name(&format!(" {rest}"))));
        if text.contains("    cx.save(") {
            // `Checkpoint` and `Progress` write into checkpoints themselves.
            names.extend(
                text.split("\nimpl Default for ").skip(1).map(|rest| name(&format!(" {rest}"))).take(1),
            );
        }
    }
    names
}

#[test]
fn the_table_of_the_guide_has_every_hook_with_a_state() {
    let guide = source("guide/training.md");
    let (_, section) = guide.split_once("\n## A second fit\n").unwrap();
    let section = section.split("\n## ").next().unwrap();
    let rows: Vec<&str> = section.lines().filter(|line| line.starts_with("| ")).collect();
    let names = with_state();
    assert!(names.len() > 15, "{names:?}");
    for name in names {
        let rows = rows.iter().filter(|row| {
            let first = row.split(" | ").next().unwrap_or_default();
            first.contains(&format!("[`{name}`]"))
        });
        assert_eq!(rows.count(), 1, "`{name}` needs one row in the table of the guide");
    }
}

/// Runs two fits, and returns what `probe` returns after each.
fn after_each<T: Task<Batch = (Tensor, Tensor)>, R>(
    builder: TrainerBuilder<T>,
    probe: impl Fn(&Trainer<T>) -> R,
) -> [R; 2] {
    let mut trainer = builder.build().unwrap();
    [0, 1].map(|_| {
        trainer.fit(&mut rows(8), Some(&mut rows(4))).unwrap();
        probe(&trainer)
    })
}

/// Returns a builder that logs these values as `valid/recorded`, one for each validation.
fn recording(values: Vec<f64>) -> TrainerBuilder<impl Task<Batch = (Tensor, Tensor), Pred = Tensor>> {
    let mut values = values.into_iter();
    model::builder().on::<AfterValid>("record", move |cx| {
        cx.log("recorded", values.next().unwrap_or(f64::NAN));
    })
}

#[test]
fn early_stopping_begins_anew() {
    let hook = EarlyStopping::new("valid/recorded", Goal::Minimize).patience(2);
    let builder = recording(vec![1.0, 2.0, 3.0, 5.0, 4.0, 3.0]).epochs(3).hook(hook);
    let found = after_each(builder, |trainer| {
        (trainer.counters().epoch, trainer.hook::<EarlyStopping>().unwrap().best())
    });
    // The second fit stops neither after one epoch nor because its values are above 1.
    assert_eq!(found, [(2, Some(1.0)), (5, Some(3.0))]);
}

#[test]
fn a_plateau_begins_anew_and_the_reduced_rate_stays() {
    let hook = ReduceOnPlateau::new("valid/recorded", Goal::Minimize).patience(0).factor(0.5).cooldown(9);
    let builder = recording(vec![1.0, 2.0, 5.0, 4.0]).epochs(2).hook(hook);
    let found = after_each(builder, |trainer| {
        let state = trainer.hook::<ReduceOnPlateau>().unwrap().state();
        (trainer.optimizer().unwrap().groups()[0].lr, state.best, state.reductions, state.cooldown)
    });
    assert_eq!(found, [(0.05, Some(1.0), 1, 9), (0.05, Some(4.0), 0, 0)]);
}

#[test]
fn guards_keep_their_count_and_forget_the_rest() {
    let spike = |builder: TrainerBuilder<_>| {
        let mut left = 1;
        builder.on::<AfterTransfer>("nan", move |cx| {
            if cx.phase() == Phase::Train && left > 0 {
                left -= 1;
                cx.batch_mut::<(Tensor, Tensor)>()?.0 *= f64::NAN;
            }
            Ok(())
        })
    };
    let nan = after_each(spike(model::builder().hook(NanGuard::skip_batch())), |trainer| {
        trainer.hook::<NanGuard>().unwrap().found()
    });
    assert_eq!(nan, [1, 1]);
    let spikes = after_each(spike(model::builder().hook(SpikeGuard::new())), |trainer| {
        trainer.hook::<SpikeGuard>().unwrap().spikes().len()
    });
    assert_eq!(spikes, [1, 0]);
}

#[test]
fn averages_continue() {
    let first = |average: Option<(&str, &Tensor)>| average.unwrap().1.copy();
    let live = |trainer: &Trainer<_>, name: &str| trainer.vars().get(name).unwrap().detach().copy();
    let [_, second] = after_each(model::builder().hook(Ema::new(0.5)), |trainer| {
        let average = trainer.hook::<Ema>().unwrap().average().next();
        (average.unwrap().0.to_owned(), first(average))
    });
    assert_eq!(second.1.isfinite().all().int64_value(&[]), 1);
    let [one, two] = after_each(model::builder().hook(Swa::from_epoch(0)), |trainer| {
        let average = trainer.hook::<Swa>().unwrap().average().next().unwrap();
        (average.1.copy(), live(trainer, average.0))
    });
    // The mean of the weights at the end of both epochs.
    assert!((two.0 - (one.1 + two.1) / 2.0).abs().max().double_value(&[]) < 1e-6);
}

#[test]
fn schedules_freezing_and_the_loss_scale_continue() {
    let rates = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&rates);
    let builder = model::builder().hook(HyperparameterSchedule::lr(Linear::to(0.0).over(8)));
    let builder = builder.on::<AfterOptStep>("rate", move |cx| seen.lock().unwrap().push(cx.lrs()[0]));
    after_each(builder.hook(Freeze::new("fc1.*").thaw_at(1, "fc1.*")), |_| ());
    let line: Vec<f64> = (0..4).map(|step| 0.1 * (1.0 - f64::from(step) / 8.0)).collect();
    assert_eq!(*rates.lock().unwrap(), line);
    let scales = after_each(elementwise().hook(Amp::fp16().init_scale(4.0).growth_interval(1)), |trainer| {
        trainer.hook::<Amp>().unwrap().scale()
    });
    assert_eq!(scales, [16.0, 64.0]);

    struct Noise(f64);
    #[hook]
    impl Noise {
        fn setup(&mut self, _: &mut Cx<Setup>) {}
    }
    let field = FieldSchedule::new(Linear::to(0.0).over(8), |noise: &mut Noise, value| noise.0 = value);
    let values = after_each(model::builder().hook(Noise(9.0)).hook(field), |trainer| {
        trainer.hook::<Noise>().unwrap().0
    });
    assert_eq!(values, [1.0 - 1.0 / 8.0, 1.0 - 3.0 / 8.0]);
}

#[test]
fn the_best_checkpoints_stay_and_what_belongs_to_a_pass_does_not() {
    let folder = scratch("second-fit");
    let hook = Checkpoint::new(&folder).keep_best(1, "valid/recorded", Goal::Minimize);
    let best = after_each(recording(vec![1.0, 2.0]).hook(hook), |trainer| {
        trainer.hook::<Checkpoint>().unwrap().best().unwrap().1
    });
    assert_eq!(best, [1.0, 1.0]);
    fs::remove_dir_all(&folder).unwrap();

    let builder = Trainer::builder(model::named_task()).optimizer(Sgd::new(0.1)).discover(Discover::None);
    let builder = builder.hook(DeadUnits::new("fc1")).hook(FeatureRecorder::new("fc1").all(true));
    let builder = builder.hook(MetricHook::new(Accuracy::multiclass(3)));
    let [one, two] = after_each(builder, |trainer| {
        let recorded = trainer.hook::<FeatureRecorder>().unwrap();
        (
            trainer.hook::<DeadUnits>().unwrap().units("fc1").is_some(),
            format!("{recorded:?}").len(),
            trainer.hook::<MetricHook<Accuracy>>().unwrap().value(Phase::Valid).is_some(),
        )
    });
    assert!(one.0 && two.0 && one.2 && two.2);
}

#[test]
fn the_summary_and_the_limits_are_those_of_the_fit() {
    let mut trainer = model::builder().epochs(3).min_epochs(1).max_steps(3).build().unwrap();
    for fit in 1..=2 {
        let summary = trainer.fit(&mut rows(8), None).unwrap();
        assert_eq!(summary.counters.optimizer_steps, 3 * fit);
        assert_eq!(summary.history.points("train/loss").count(), 2);
    }
}
