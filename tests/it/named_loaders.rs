//! Several validation and test loaders, each with a name.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use trainer::data::NamedLoaders;
use trainer::hooks::{Checkpoint, EarlyStopping, ReduceOnPlateau};
use trainer::loggers::Csv;
use trainer::metrics::{Accuracy, BestSoFar, MeanSquaredError, Metric, MetricHook, Running};
use trainer::prelude::*;
use trainer::{CancelToken, TrainerBuilder};

use crate::model::{self, rows};
use crate::support::{self, exact_state, scratch};

type Loaders = NamedLoaders<'static, (Tensor, Tensor)>;

/// Returns a loader `clean` of 3 batches, which follows `validate_every`, and a loader `noisy` of 2
/// batches.
fn two(noisy_every: Option<Every>) -> Loaders {
    let loaders = NamedLoaders::new().add("clean", rows(10));
    match noisy_every {
        Some(every) => loaders.add_every("noisy", rows(7), every),
        None => loaders.add("noisy", rows(7)),
    }
}

/// Collects lines that closures write.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<String>>>);

impl Lines {
    fn add(&self, line: String) {
        self.0.lock().unwrap().push(line);
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

/// Adds hooks that write the start and the end of each validation and test pass to `lines`, as
/// `+valid clean 0` and `-valid clean 0`, and the end of each epoch.
fn observed<T: Task>(builder: TrainerBuilder<T>, lines: &Lines) -> TrainerBuilder<T> {
    fn line<P>(cx: &Cx<P>, sign: &str) -> String {
        let Counters { epoch, .. } = cx.counters();
        format!("{sign}{} {} {epoch}", cx.phase(), cx.loader().unwrap_or("-"))
    }
    let [one, two, three, four, five] = [(); 5].map(|()| lines.clone());
    builder
        .on::<BeforeValid>("begin", move |cx| one.add(line(cx, "+")))
        .on::<AfterValid>("end", move |cx| two.add(line(cx, "-")))
        .on::<BeforeTest>("begin_test", move |cx| three.add(line(cx, "+")))
        .on::<AfterTest>("end_test", move |cx| four.add(line(cx, "-")))
        .on::<AfterEpoch>("epoch", move |cx| five.add(line(cx, "epoch ")))
}

#[test]
fn each_loader_has_a_pass_an_interval_and_metric_names_of_its_own() {
    let lines = Lines::default();
    let records = Lines::default();
    let seen = records.clone();
    let mut trainer = observed(model::builder(), &lines)
        .hook(Accuracy::multiclass(3).per_class(true))
        .on::<AfterPred>(HookOptions::named("size").only(Phase::Valid), |cx| {
            cx.log_as("rows", cx.pred::<Tensor>().unwrap().size()[0], Reduce::Sum);
        })
        .on::<AfterValid>("late", |cx| cx.log("late", 1.5))
        .on::<AfterRecord>(HookOptions::named("records").only(Phase::Valid), move |cx| {
            let names: Vec<&str> = cx.record().scalars().map(|(name, _)| name).collect();
            seen.add(format!("{} {}", cx.loader().unwrap_or("-"), names.len()));
            let prefix = cx.loader().map_or("valid/".to_owned(), |loader| format!("valid/{loader}/"));
            assert!(names.iter().all(|name| name.starts_with(&prefix)));
        })
        .epochs(4)
        .sanity_batches(1)
        .build()
        .unwrap();
    let summary = trainer.fit(&mut rows(12), Some(&mut two(Some(Every::Epochs(2))))).unwrap();
    assert_eq!(
        lines.take(),
        [
            "+sanity clean 0",
            "-sanity clean 0",
            "+sanity noisy 0",
            "-sanity noisy 0",
            "+valid clean 0",
            "-valid clean 0",
            "epoch train - 0",
            "+valid clean 1",
            "-valid clean 1",
            "+valid noisy 1",
            "-valid noisy 1",
            "epoch train - 1",
            "+valid clean 2",
            "-valid clean 2",
            "epoch train - 2",
            "+valid clean 3",
            "-valid clean 3",
            "+valid noisy 3",
            "-valid noisy 3",
            "epoch train - 3",
        ]
    );
    // Seven scalars: the loss, the accuracy of all and of each of three classes, `rows` and `late`.
    assert_eq!(records.take(), ["clean 7", "clean 7", "noisy 7", "clean 7", "clean 7", "noisy 7"]);
    let epochs = |name: &str| summary.history.points(name).map(|(at, _)| at.epoch).collect::<Vec<_>>();
    for name in ["loss", "accuracy", "accuracy/2", "late"] {
        assert_eq!(epochs(&format!("valid/clean/{name}")), [0, 1, 2, 3], "{name}");
        assert_eq!(epochs(&format!("valid/noisy/{name}")), [1, 3], "{name}");
    }
    assert_eq!((summary.metrics["valid/clean/rows"], summary.metrics["valid/noisy/rows"]), (10.0, 7.0));
    assert!(summary.metrics.get("valid/loss").is_none());

    // A single loader without a name has the same values, bit for bit, under names without the
    // loader.
    let named = trainer.validate(&mut two(Some(Every::Epochs(50)))).unwrap();
    assert_eq!(lines.take(), ["+valid clean 3", "-valid clean 3", "+valid noisy 3", "-valid noisy 3"]);
    for (name, count) in [("clean", 10), ("noisy", 7)] {
        let alone = trainer.validate(&mut rows(count)).unwrap();
        for metric in ["loss", "accuracy"] {
            let of_both = named.metrics[&format!("valid/{name}/{metric}")[..]];
            assert_eq!(of_both.to_bits(), alone.metrics[&format!("valid/{metric}")[..]].to_bits());
        }
        lines.take();
    }
    let tested = trainer.test(&mut two(None)).unwrap();
    assert_eq!(lines.take(), ["+test clean 3", "-test clean 3", "+test noisy 3", "-test noisy 3"]);
    assert_eq!(tested.metrics["test/noisy/loss"].to_bits(), named.metrics["valid/noisy/loss"].to_bits());
}

#[test]
fn intervals_within_the_epoch_and_after_it_can_be_mixed() {
    let lines = Lines::default();
    let mut trainer =
        observed(model::builder(), &lines).epochs(2).validate_every(Every::Steps(2)).build().unwrap();
    let mut valid = two(Some(Every::Epochs(1))).add_every("half", rows(4), Every::Fraction(0.5));
    trainer.fit(&mut rows(12), Some(&mut valid)).unwrap(); // 3 steps in an epoch
    let expected = ["clean", "half", "half", "noisy", "clean", "half", "clean", "half", "noisy"];
    let lines = lines.take();
    let begun: Vec<&str> =
        lines.iter().filter_map(|line| line.strip_prefix("+valid ")?.split(' ').next()).collect();
    assert_eq!(begun, expected);
}

#[test]
fn a_fast_dev_run_validates_each_loader_once() {
    let lines = Lines::default();
    let mut trainer = observed(model::builder(), &lines).fast_dev_run(1).build().unwrap();
    trainer.fit(&mut rows(12), Some(&mut two(Some(Every::Epochs(50))))).unwrap();
    assert_eq!(lines.take().iter().filter(|line| line.starts_with('+')).count(), 2);
}

#[test]
fn hooks_monitor_the_loader_that_their_metric_names() {
    let folder = scratch("named-judges");
    let mut trainer = model::builder()
        .hook(ReduceOnPlateau::new("valid/noisy/loss", Goal::Minimize).threshold_abs(1e9).patience(100))
        .hook(ReduceOnPlateau::new("valid/clean/loss", Goal::Minimize).threshold_abs(1e9).patience(100))
        .hook(Checkpoint::new(&folder).keep_best(1, "valid/noisy/loss", Goal::Minimize))
        .hook(EarlyStopping::new("valid/clean/loss", Goal::Minimize).patience(100))
        .epochs(4)
        .build()
        .unwrap();
    let summary = trainer.fit(&mut rows(12), Some(&mut two(Some(Every::Epochs(2))))).unwrap();
    let bad: Vec<u64> = trainer.hooks::<ReduceOnPlateau>().map(|hook| hook.state().bad).collect();
    assert_eq!(bad, [1, 3]);
    let lowest =
        |name: &str| summary.history.points(name).map(|(_, value)| value).fold(f64::INFINITY, f64::min);
    assert_ne!(lowest("valid/noisy/loss"), lowest("valid/clean/loss"));
    assert_eq!(trainer.hook::<Checkpoint>().unwrap().best().unwrap().1, lowest("valid/noisy/loss"));
    assert_eq!(trainer.hook::<EarlyStopping>().unwrap().best(), Some(lowest("valid/clean/loss")));
}

#[test]
fn a_stop_takes_effect_after_the_last_loader_that_is_due() {
    let stopping = EarlyStopping::new("valid/clean/loss", Goal::Minimize).stop_at(1e9);
    let mut trainer = model::builder().hook(stopping).epochs(4).build().unwrap();
    let summary = trainer.fit(&mut rows(12), Some(&mut two(None))).unwrap();
    assert_eq!(summary.counters.epoch, 0);
    assert!(summary.stopped.is_some() && summary.metrics.get("valid/noisy/loss").is_some());
}

#[test]
fn a_metric_of_an_unknown_loader_is_refused_before_training() {
    fn refused<K>(hook: impl trainer::IntoHook<K>, valid: &mut dyn Loader<(Tensor, Tensor)>) -> String {
        let mut trainer = model::builder().hook(hook).max_steps(4).build().unwrap();
        let error = trainer.fit(&mut rows(12), Some(valid)).unwrap_err().to_string();
        assert_eq!(trainer.counters().batches_seen, 0);
        error
    }
    let error = refused(EarlyStopping::new("valid/nosy/loss", Goal::Minimize), &mut two(None));
    let expected = "`valid/nosy/loss` will never be measured, because no validation loader is named `nosy`; the loaders are `clean`, `noisy`";
    assert!(error.contains(expected) && error.contains("did you mean `noisy`"), "{error}");
    let error = refused(ReduceOnPlateau::new("valid/loss", Goal::Minimize), &mut two(None));
    assert!(
        error.contains(
            "`valid/loss` does not name a validation loader: write `valid/clean/loss`, for example; the loaders are `clean`, `noisy`"
        ),
        "{error}"
    );
    let keep = Checkpoint::new(scratch("named-refused")).keep_best(1, "valid/nosiy/loss", Goal::Minimize);
    let error = refused(keep, &mut two(None));
    assert!(error.contains("no validation loader is named `nosiy`"), "{error}");
    let mut later = two(None).add_every("later", rows(4), Every::Epochs(1));
    let error = refused(EarlyStopping::new("valid/later/los", Goal::Minimize), &mut later);
    let expected = "no metric named `valid/later/los` will be logged; the metrics are `valid/later/loss`; did you mean `valid/later/loss`?";
    assert!(error.contains(expected), "{error}");
    let keep = Checkpoint::new(scratch("named-refused-2")).keep_best(1, "valid/clean/lss", Goal::Minimize);
    assert!(refused(keep, &mut two(None)).contains("did you mean `valid/clean/loss`?"));
}

#[test]
fn an_invalid_list_of_loaders_is_refused_before_training() {
    let fit = |mut valid: Loaders| {
        let mut trainer = model::builder().epochs(2).build().unwrap();
        let error = trainer.fit(&mut rows(12), Some(&mut valid)).unwrap_err().to_string();
        assert_eq!(trainer.counters().batches_seen, 0);
        error
    };
    let error = fit(NamedLoaders::new());
    assert!(error.contains("`NamedLoaders` has no loader: add one"), "{error}");
    let error = fit(two(None).add("clean", rows(4)));
    assert!(error.contains("two loaders are named `clean`"), "{error}");
    for name in ["", "a/b", "a@b", " a"] {
        let error = fit(two(None).add(name, rows(4)));
        assert!(error.contains(&format!("`{name}` cannot be the name of a loader")), "{error}");
    }
    let error = fit(NamedLoaders::new().add("outer", two(None)));
    assert!(error.contains("the loader `outer` is a `NamedLoaders` itself"), "{error}");
    let error = fit(two(Some(Every::Epochs(3))));
    assert!(error.contains("`.add_every(\"noisy\", …, Every::Epochs(3))` exceeds `.epochs(2)`"), "{error}");
    let error = fit(two(Some(Every::Steps(0))));
    assert!(error.contains("`.add_every(\"noisy\", …, …)` of 0 never validates"), "{error}");
    let error = fit(two(Some(Every::Fraction(1.5))));
    assert!(error.contains("`.add_every(\"noisy\", …, Every::Fraction(1.5))`"), "{error}");

    let mut trainer = model::builder().build().unwrap();
    for error in [
        trainer.fit(&mut two(None), None).unwrap_err().to_string(),
        trainer.predict(&mut two(None)).unwrap_err().to_string(),
    ] {
        assert!(error.contains("pass a single loader for training and prediction"), "{error}");
    }
}

#[test]
fn an_empty_loader_is_an_error_that_names_it() {
    let empty = trainer::data::from_fn(|_| std::iter::empty::<(Tensor, Tensor)>());
    let mut valid = NamedLoaders::new().add("clean", rows(4)).add("empty", empty);
    let mut trainer = model::builder().epochs(1).build().unwrap();
    let error = trainer.fit(&mut rows(12), Some(&mut valid)).unwrap_err();
    assert_eq!(error.location().unwrap().loader.as_deref(), Some("empty"));
    let error = error.to_string();
    assert!(
        error.contains("failed at valid `empty`, epoch 0, batch 0: the loader yielded no batches"),
        "{error}"
    );
    let error = trainer.validate(&mut valid).unwrap_err().to_string();
    assert!(error.contains("valid `empty`"), "{error}");
}

#[test]
fn errors_name_the_loader_but_errors_of_the_next_entry_point_do_not() {
    let mut trainer = model::builder()
        .hook(Accuracy::multiclass(3))
        .on::<AfterLoss>(HookOptions::named("fails").only(Phase::Valid), |cx| match cx.loader() {
            Some("noisy") => Err(Error::msg("noise")),
            _ => Ok(()),
        })
        .on::<AfterError>("seen", |cx| cx.log("seen", f64::from(u8::from(cx.loader() == Some("noisy")))))
        .build()
        .unwrap();
    let error = trainer.validate(&mut two(None)).unwrap_err().to_string();
    assert!(error.contains("failed at after_loss (valid `noisy`), epoch 0, batch 0: noise"), "{error}");
    assert!(trainer.validate(&mut rows(4)).unwrap().metrics.get("valid/accuracy").is_some());
}

#[test]
fn metrics_keep_a_state_for_each_loader() {
    let mut trainer = model::builder()
        .hook(BestSoFar::new(Accuracy::multiclass(3), Goal::Maximize))
        .hook(Accuracy::multiclass(3))
        .epochs(3)
        .build()
        .unwrap();
    let summary = trainer.fit(&mut rows(12).shuffle(2), Some(&mut two(None))).unwrap();
    let metric = trainer.hook::<MetricHook<Accuracy>>().unwrap();
    for name in ["clean", "noisy"] {
        let highest =
            summary.history[&format!("valid/{name}/accuracy")[..]].iter().copied().fold(0.0, f64::max);
        assert_eq!(summary.metrics[&format!("valid/{name}/best_accuracy")[..]], highest);
        let last = metric.value_of(Phase::Valid, name).unwrap().double_value(&[]);
        assert_eq!(last, summary.metrics[&format!("valid/{name}/accuracy")[..]]);
    }
    assert!(metric.value(Phase::Valid).is_none());
}

/// Trains with three validation loaders, and returns everything that a resumed run must have in
/// common with one that was not interrupted: the weights, the metrics, their history and the logged
/// rows, without times.
///
/// `interrupt` is called after each batch of validation, with the number of these batches so far.
fn trained(
    folder: &std::path::Path,
    every: Every,
    token: CancelToken,
    interrupt: impl Fn(u64) + Send + 'static,
) -> Result<String> {
    let seen = AtomicU64::new(0);
    let csv = folder.join("values.csv");
    let first =
        |(inputs, _): &(Tensor, Tensor), pred: &Tensor| Some((pred.select(1, 0), inputs.select(1, 0)));
    let mut trainer = model::builder()
        .epochs(3)
        .validate_every(every)
        .cancel_token(token)
        .hook(Checkpoint::new(folder.join("checkpoints")).every(Every::Steps(2)))
        .hook(Csv::at(&csv))
        .hook(Accuracy::multiclass(3).per_class(true))
        .hook(BestSoFar::new(MeanSquaredError::new(), Goal::Minimize).inputs(first))
        .hook(Running::new(MeanSquaredError::new(), 2).inputs(first))
        .hook(ReduceOnPlateau::new("valid/noisy/loss", Goal::Minimize).threshold_abs(10.0).patience(0))
        .hook(EarlyStopping::new("valid/third/loss", Goal::Minimize).patience(100))
        .on::<AfterPred>(HookOptions::named("mean").only(Phase::Valid), |cx| {
            cx.log("mean", cx.pred::<Tensor>().unwrap().mean(Kind::Float));
        })
        .on::<AfterStep>(HookOptions::named("interrupt").only(Phase::Valid), move |_| {
            interrupt(seen.fetch_add(1, Ordering::Relaxed) + 1);
        })
        .resume(Resume::Auto)
        .build()?;
    let mut valid = NamedLoaders::new()
        .add("clean", rows(10))
        .add("noisy", rows(22).shuffle(5).prefetch(2))
        .add_every("third", rows(6), Every::Steps(3));
    let summary = trainer.fit(&mut rows(16).shuffle(3), Some(&mut valid))?;
    let bits = |(name, value): (&str, f64)| format!("{name} {:016x}", value.to_bits());
    let metrics: Vec<String> = summary.metrics.iter().map(bits).collect();
    let history: Vec<String> = summary
        .history
        .columns()
        .map(|(name, values)| {
            format!("{name} {:x?}", values.iter().map(|value| value.to_bits()).collect::<Vec<_>>())
        })
        .collect();
    let logged = std::fs::read_to_string(csv)?;
    let without_time = |line: &str| {
        line.split(',').enumerate().filter(|(nth, _)| *nth != 4).map(|cell| cell.1.to_owned()).collect()
    };
    let logged: Vec<Vec<String>> = logged.lines().map(without_time).collect();
    Ok(format!("{:?}\n{metrics:?}\n{history:?}\n{logged:?}", exact_state(&trainer)))
}

/// Runs [`trained`] without an interruption.
fn uninterrupted(name: &str, every: Every) -> String {
    trained(&scratch(name), every, CancelToken::new(), |_| {}).unwrap()
}

#[test]
fn a_run_cancelled_in_any_loader_resumes_bit_for_bit() {
    // After each epoch, `clean` and `noisy` have 9 batches together, and every 3 steps, `third` has
    // 2; with `Every::Steps(3)`, all three are validated every 3 steps.
    for (name, every) in [("after", Every::Epochs(1)), ("within", Every::Steps(3))] {
        let whole = uninterrupted(&format!("named-{name}-whole"), every);
        for at in [1, 2, 3, 4, 5, 6, 9, 10, 11, 12, 14, 19] {
            let folder = scratch(&format!("named-{name}-{at}"));
            let token = CancelToken::new();
            let cancel = token.clone();
            let interrupted = trained(&folder, every, token, move |seen| {
                if seen == at {
                    cancel.cancel();
                }
            });
            assert!(interrupted.unwrap_err().is_cancelled(), "{name} {at}");
            let resumed = trained(&folder, every, CancelToken::new(), |_| {}).unwrap();
            assert!(resumed == whole, "{name}, cancelled after {at} batches:\n{resumed}\n{whole}");
        }
    }
}

/// Kills the process in the middle of the validation of the second loader.
#[test]
#[ignore = "run by a_run_killed_in_the_second_loader_resumes_bit_for_bit"]
fn is_killed_while_validating_the_second_loader() {
    let folder = std::env::var_os("TRAINER_TEST_FOLDER").unwrap();
    let kill = |seen| {
        if seen == 16 {
            std::process::abort()
        }
    };
    let _ = trained(folder.as_ref(), Every::Epochs(1), CancelToken::new(), kill);
    unreachable!("the process should have been aborted");
}

#[test]
fn a_run_killed_in_the_second_loader_resumes_bit_for_bit() {
    let folder = scratch("named-killed");
    let mut child = support::child_process("named_loaders::is_killed_while_validating_the_second_loader");
    let output = child.env("TRAINER_TEST_FOLDER", &folder).output().unwrap();
    assert!(!output.status.success() && !String::from_utf8_lossy(&output.stderr).contains("unreachable"));
    let resumed = trained(&folder, Every::Epochs(1), CancelToken::new(), |_| {}).unwrap();
    assert!(resumed == uninterrupted("named-not-killed", Every::Epochs(1)));
}

#[test]
fn a_resumed_fit_refuses_different_validation_loaders() {
    let folder = scratch("named-other");
    let fit = |mut valid: Option<Loaders>, cancel_at: u64| {
        let token = CancelToken::new();
        let cancel = token.clone();
        let seen = AtomicU64::new(0);
        let mut trainer = model::builder()
            .epochs(2)
            .cancel_token(token)
            .hook(Checkpoint::new(&folder))
            .on::<AfterStep>(HookOptions::named("cancel").only(Phase::Valid), move |_| {
                if seen.fetch_add(1, Ordering::Relaxed) + 1 == cancel_at {
                    cancel.cancel();
                }
            })
            .resume(Resume::Auto)
            .build()
            .unwrap();
        let valid = valid.as_mut().map(|valid| valid as &mut dyn Loader<_>);
        trainer.fit(&mut rows(12), valid).unwrap_err()
    };
    assert!(fit(Some(two(None)), 4).is_cancelled()); // in `noisy`
    let error = fit(Some(two(Some(Every::Epochs(1)))), 0).to_string();
    assert!(
        error.contains("the validation data was clean: ") && error.contains("noisy every Epochs(1)"),
        "{error}"
    );
    let error = fit(Some(NamedLoaders::new().add("noisy", rows(7)).add("clean", rows(10))), 0).to_string();
    assert!(error.contains("the validation data was"), "{error}");
    let error = fit(None, 0).to_string();
    assert!(error.contains("and is now none"), "{error}");
}
