//! Profiles: the measured spans, on every exit, and the formats.

use std::collections::HashMap;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::Output;
use std::time::Duration;

use serde_json::Value;
use trainer::TrainerBuilder;
use trainer::checkpoint::Resume;
use trainer::hooks::Checkpoint;
use trainer::prelude::*;
use trainer::profile::{Profile, ProfileRow, SpanKind};
use trainer::testing::{Harness, SmallTask};

use crate::model;
use crate::support::{cancelled_at, child_process, device, exact_state, parameters, scratch};

/// Wraps the forward pass.
struct Around;

#[hook]
impl Around {
    fn around_pred(&mut self, cx: &mut Cx<Pred>, next: Next<Pred>) -> Result<Done> {
        next.run(cx)
    }
}

fn profiled() -> Harness<'static, SmallTask> {
    Harness::small().configure(|builder| builder.profile(true))
}

/// Returns the number of spans of each row, keyed `phase label`. Asserts that the self times add up
/// exactly to the time of the entry point.
fn calls(profile: &Profile) -> HashMap<String, u64> {
    let rows = profile.rows();
    assert_eq!(rows.iter().map(|row| row.self_time).sum::<Duration>(), profile.total());
    let entry: Vec<_> = rows.iter().filter(|row| row.kind == SpanKind::Entry).collect();
    assert_eq!((entry.len(), entry[0].calls, entry[0].total), (1, 1, profile.total()));
    for row in &rows {
        assert!(row.self_time <= row.total && row.max <= row.total && row.mean() <= row.max, "{row:?}");
    }
    assert!(rows.is_sorted_by(|one, other| one.self_time >= other.self_time));
    let key = |row: &ProfileRow| match &row.moment {
        Some(moment) if row.around => format!("{} {} around {moment}", row.phase, row.name),
        Some(moment) => format!("{} {} at {moment}", row.phase, row.name),
        None => format!("{} {} {}", row.phase, row.kind.name(), row.name),
    };
    rows.iter().map(|row| (key(row), row.calls)).collect()
}

#[test]
fn every_operation_hook_and_wait_for_data_is_counted() {
    let harness = profiled().epochs(2).hook(Around).on::<AfterLoss>(|_| ()).on::<Teardown>(|_| ());
    let profile = harness.run().unwrap().trainer.profile().unwrap();
    assert_eq!((profile.entry(), profile.dropped_spans()), ("fit", 0));
    let calls = calls(&profile);
    let expected = [
        ("train entry fit", 1),
        ("train operation fit", 1),
        ("train operation epoch", 2),
        ("train operation train_epoch", 2),
        ("train operation step", 8),
        ("train operation transfer", 8),
        ("train operation pred", 8),
        ("train it::profile::Around::around_pred around pred", 8),
        ("train operation loss", 8),
        ("train harness at after_loss", 8),
        ("train operation backward", 8),
        ("train operation opt_step", 8),
        ("train operation zero_grad", 8),
        ("valid operation valid", 2),
        ("valid operation step", 4),
        ("valid operation transfer", 4),
        ("valid operation pred", 4),
        ("valid it::profile::Around::around_pred around pred", 4),
        ("valid operation loss", 4),
        ("valid harness at after_loss", 4),
        ("train harness #2 at teardown", 1),
        // Each pass: its start, its batches, and the end of its data.
        ("train data data", 2 * (1 + 4 + 1)),
        ("valid data data", 2 * (1 + 2 + 1)),
    ];
    let expected: HashMap<String, u64> = expected.map(|(row, count)| (row.to_owned(), count)).into();
    assert_eq!(calls, expected);
}

#[test]
fn a_profile_covers_the_last_entry_point_and_changes_no_results() {
    let trained = |is_profiled: bool| {
        let mut trainer = model::builder().profile(is_profiled).hook(Around).build().unwrap();
        assert!(trainer.profile().is_none());
        trainer.fit(&mut model::rows(16), Some(&mut model::rows(8))).unwrap();
        trainer
    };
    let mut with = trained(true);
    let without = trained(false);
    assert!(without.profile().is_none());
    assert_eq!(with.describe_hooks(), without.describe_hooks());
    assert_eq!(parameters(&with), parameters(&without));
    with.predict(&mut model::rows(12)).unwrap();
    let profile = with.profile().unwrap();
    assert_eq!(profile.entry(), "predict");
    let calls = calls(&profile);
    assert_eq!((calls["predict operation predict_step"], calls.get("train operation step")), (3, None));
}

#[test]
fn a_profiled_run_resumes_exactly_and_profiles_the_remaining_steps() {
    let folder = scratch("profile-resume");
    let run = |cancel: Option<u64>, is_profiled: bool| {
        let builder = model::builder().epochs(2).profile(is_profiled);
        let builder = cancelled_at(cancel, builder);
        let builder = if is_profiled || cancel.is_some() {
            builder.hook(Checkpoint::new(&folder)).resume(Resume::Auto)
        } else {
            builder
        };
        let mut trainer = builder.build().unwrap();
        let outcome = trainer.fit(&mut model::rows(16), None);
        assert_eq!(outcome.is_err(), cancel.is_some());
        trainer
    };
    run(Some(3), true);
    let resumed = run(None, true);
    assert_eq!(calls(&resumed.profile().unwrap())["train operation step"], 5);
    assert_eq!(exact_state(&resumed), exact_state(&run(None, false)));
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn two_hook_values_of_one_type_have_separate_rows() {
    let harness = profiled().hook(Around).hook(Around);
    let calls = calls(&harness.run().unwrap().trainer.profile().unwrap());
    assert_eq!(calls["train it::profile::Around::around_pred #1 around pred"], 4);
    assert_eq!(calls["train it::profile::Around::around_pred #2 around pred"], 4);
}

#[test]
fn a_run_that_fails_or_is_cancelled_has_a_profile() {
    let failed = profiled().fail_at::<AfterPred>("lost").on::<AfterError>(|_| ()).run().unwrap();
    assert!(failed.result.is_err());
    let of_failed = calls(&failed.trainer.profile().unwrap());
    assert_eq!(of_failed["train operation step"], 1);
    assert_eq!((of_failed["train operation pred"], of_failed.get("train operation loss")), (1, None));
    assert_eq!(of_failed["train harness #2 at after_error"], 1);

    let cancelled = profiled().cancel_after(3).run().unwrap();
    assert_eq!(calls(&cancelled.trainer.profile().unwrap())["train operation step"], 3);
}

#[test]
fn a_run_that_panics_has_a_profile() {
    let builder = model::builder().profile(true).hook(Around);
    let mut trainer = builder.on::<BeforeLoss>("panic", |_| panic!("no loss")).build().unwrap();
    catch_unwind(AssertUnwindSafe(|| trainer.fit(&mut model::rows(8), None))).unwrap_err();
    let of_failed = calls(&trainer.profile().unwrap());
    assert_eq!((of_failed["train panic at before_loss"], of_failed["train operation step"]), (1, 1));
    // The trainer, and its recorder, can be used again.
    trainer.predict(&mut model::rows(8)).unwrap();
    assert_eq!(calls(&trainer.profile().unwrap())["predict operation predict_step"], 2);
}

/// Handles the errors of `step`.
struct Recover;

#[hook]
impl Recover {
    fn recover(&mut self, cx: &mut Cx<Step>, next: Next<Step>) -> Result<Done> {
        next.run_or(cx, |_, _| ())
    }
}

#[test]
fn spans_left_open_by_an_error_are_closed() {
    let mut failures = 0;
    let harness = profiled().hook(Recover).on::<AfterBackward>(|_| {
        failures += 1;
        Err(Error::msg("lost"))
    });
    let outcome = harness.run().unwrap();
    assert_eq!(outcome.summary().counters.batch_idx, 4);
    let calls = calls(&outcome.trainer.profile().unwrap());
    assert_eq!(failures, 4);
    assert_eq!((calls["train operation backward"], calls["train operation step"]), (4, 4));
    assert_eq!(calls.get("train operation opt_step"), None);
}

/// Skips an operation that must produce an output.
struct SkipPred;

#[hook]
impl SkipPred {
    fn skip(&mut self, _: &mut Cx<Pred>, next: Next<Pred>) -> Result<Done> {
        Ok(next.skip())
    }
}

#[test]
fn errors_name_the_same_hook_and_location_with_a_profile() {
    type Builder<'a> = &'a dyn Fn(Harness<'static, SmallTask>) -> Harness<'static, SmallTask>;
    let cases: [Builder<'_>; 5] = [
        &|harness| harness.hook(SkipPred),
        &|harness| harness.hook(Around).hook(SkipPred),
        &|harness| harness.hook(Around).fail_at::<BeforePred>("before"),
        &|harness| harness.hook(Around).fail_at::<AfterBackward>("within the step"),
        &|harness| {
            harness.configure(|builder| {
                builder.on::<AfterTransfer>("cut", |cx| {
                    let (inputs, _) = cx.batch_mut::<(Tensor, Tensor)>()?;
                    *inputs = inputs.narrow(1, 0, 3); // the task fails on it
                    Ok(())
                })
            })
        },
    ];
    for (nth, case) in cases.into_iter().enumerate() {
        let error = |is_profiled| {
            let harness = case(Harness::small().configure(|builder| builder.profile(is_profiled)));
            let outcome = catch_unwind(AssertUnwindSafe(|| harness.run().unwrap()));
            match outcome {
                Ok(outcome) => outcome.error().to_string(),
                Err(panic) => panic.downcast_ref::<String>().expect("a panic of tch").clone(),
            }
        };
        assert_eq!(error(true), error(false), "case {nth}");
    }
}

/// Checks that a trace follows the format, and returns the names of its spans.
fn check_trace(text: &str) -> Vec<String> {
    let trace: Value = serde_json::from_str(text).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let (process, spans) = events.split_first().unwrap();
    assert_eq!((&process["ph"], &process["name"]), (&"M".into(), &"process_name".into()));
    // Nanoseconds, from microseconds with three decimals.
    let ns = |value: &Value| (value.as_f64().unwrap() * 1e3).round() as u64;
    let mut open: Vec<u64> = Vec::new();
    let mut last = 0;
    for span in spans {
        assert_eq!((&span["ph"], &span["pid"], &span["tid"]), (&"X".into(), &process["pid"], &1.into()));
        assert!(span["cat"].is_string() && span["args"]["phase"].is_string(), "{span}");
        let start = ns(&span["ts"]);
        let end = ns(&span["ts"]) + ns(&span["dur"]);
        assert!(start >= last, "in the order of their start");
        last = start;
        while open.last().is_some_and(|outer| *outer <= start && *outer < end) {
            open.pop();
        }
        assert!(open.last().is_none_or(|outer| end <= *outer), "nested: {span}");
        open.push(end);
    }
    spans.iter().map(|span| span["name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_chrome_trace_has_every_span_nested_in_the_order_of_the_run() {
    let harness = profiled().on::<AfterBackward>(|_| ());
    let profile = harness.run().unwrap().trainer.profile().unwrap();
    let names = check_trace(&profile.chrome_trace());
    assert_eq!(names.len() as u64, calls(&profile).values().sum::<u64>());
    let first =
        ["fit (entry point)", "fit", "epoch", "train_epoch", "data", "data", "step", "transfer", "pred"];
    assert_eq!(names[..9], first);
    assert!(names.contains(&"harness at after_backward".to_owned()), "{names:?}");
}

#[test]
fn json_and_the_table_have_the_same_rows() {
    let profile = profiled().hook(Around).run().unwrap().trainer.profile().unwrap();
    let json: Value = serde_json::from_str(&profile.json()).unwrap();
    assert_eq!((&json["version"], &json["entry"]), (&1.into(), &"fit".into()));
    let rows = json["rows"].as_array().unwrap();
    let own: u64 = rows.iter().map(|row| row["self_ns"].as_u64().unwrap()).sum();
    assert_eq!(json["total_ns"], own);
    for (row, json) in profile.rows().into_iter().zip(rows) {
        assert_eq!((&json["name"], &json["calls"]), (&row.name.as_str().into(), &row.calls.into()));
        assert_eq!(json["moment"].as_str(), row.moment.as_deref());
    }
    let table = profile.to_string();
    assert_eq!(table.lines().count(), 2 + rows.len());
    assert!(table.starts_with("profile of `fit`: "), "{table}");
    let widths: Vec<_> = table.lines().skip(1).map(|line| line.chars().count()).collect();
    assert!(widths.iter().all(|width| *width == widths[0]), "{table}");
}

#[test]
fn a_synchronized_profile_counts_every_step_on_the_cpu() {
    let harness = Harness::small().configure(|builder| builder.profile_synchronized(true));
    let outcome = harness.run().unwrap();
    assert_eq!(calls(&outcome.trainer.profile().unwrap())["train operation step"], 4);
}

/// The program under test: two entry points, as a process of the rank in `RANK`.
#[test]
#[ignore = "run by another test in a child process"]
fn child_process_with_environment() {
    let builder: TrainerBuilder<_> = model::builder();
    let mut trainer = match builder.build() {
        Ok(trainer) => trainer,
        Err(error) => {
            eprintln!("{error}");
            return;
        }
    };
    trainer.fit(&mut model::rows(8), None).unwrap();
    trainer.test(&mut model::rows(8)).unwrap();
}

fn run_with(value: impl AsRef<Path>, rank: &str) -> (Output, String) {
    let mut child = child_process("profile::child_process_with_environment");
    let output = child.env("TRAINER_PROFILE", value.as_ref()).env("RANK", rank).output().unwrap();
    let stderr = String::from_utf8(output.stderr.clone()).unwrap();
    assert!(output.status.success(), "{stderr}");
    (output, stderr)
}

#[test]
fn the_environment_variable_prints_or_writes_the_profile_of_each_entry_point() {
    let (_, stderr) = run_with("table", "0");
    for entry in ["profile of `fit`: ", "profile of `test`: "] {
        assert!(stderr.lines().any(|line| line.starts_with(entry)), "{stderr}");
    }
    assert_eq!(run_with("table", "1").1, "", "only rank 0 prints");

    let folder = scratch("profile");
    let (_, stderr) = run_with(folder.join("run.json"), "0");
    assert!(
        stderr.contains(&format!("profile of `fit`: {}\n", folder.join("run.json").display())),
        "{stderr}"
    );
    run_with(folder.join("run.trace.json"), "0");
    let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap();
    let entry = |name: &str| serde_json::from_str::<Value>(&read(name)).unwrap()["entry"].clone();
    assert_eq!((entry("run.json"), entry("run-2.json")), ("fit".into(), "test".into()));
    assert!(check_trace(&read("run.trace.json")).contains(&"backward".to_owned()));
    assert!(check_trace(&read("run-2.trace.json")).contains(&"test".to_owned()));
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 4);

    let (_, stderr) = run_with(folder.join("absent/run.json"), "0");
    assert!(stderr.contains("the trainer cannot be built: `TRAINER_PROFILE="), "{stderr}");
    fs::remove_dir_all(&folder).unwrap();
}

/// Wraps one module.
struct AroundOne;

#[hook]
impl AroundOne {
    #[hook(of = "net.1")]
    fn around_one(&mut self, cx: &mut Cx<ModuleForward>, next: Next<ModuleForward>) -> Result<Done> {
        next.run(cx)
    }
}

#[test]
fn named_modules_are_measured_by_name() {
    for hooked in [false, true] {
        let vs = nn::VarStore::new(device());
        let path = vs.root() / "net";
        let net = trainer::modules::seq(&path)
            .add(nn::linear(&path / 0, 4, 8, Default::default()))
            .add(nn::func(Tensor::relu))
            .add(nn::linear(&path / 2, 8, 3, Default::default()));
        let task = Supervised::new(vs, net, |logits, labels| logits.cross_entropy_for_logits(labels));
        let builder = Trainer::builder(task).optimizer(Sgd::new(0.1)).discover(Discover::None).profile(true);
        let builder = if hooked { builder.hook(AroundOne) } else { builder };
        let mut trainer = builder.build().unwrap();
        trainer.fit(&mut model::rows(16), Some(&mut model::rows(8))).unwrap();
        let calls = calls(&trainer.profile().unwrap());
        for name in ["net", "net.0", "net.1", "net.2"] {
            assert_eq!(calls.get(&format!("train module {name}")), Some(&4), "{calls:?}");
            assert_eq!(calls[&format!("valid module {name}")], 2);
        }
        let around = calls.get("train it::profile::AroundOne::around_one around module_forward");
        assert_eq!(around, hooked.then_some(&4));
    }
}

/// Counts the calls that begin and end, by kind.
struct Counts(std::sync::Arc<std::sync::Mutex<Vec<(trainer::profile::SpanKind, bool)>>>);

impl trainer::Layer for Counts {
    fn call(&self, call: &mut trainer::Call<'_>) -> Result<(), trainer::BoxError> {
        self.0.lock().unwrap().push((call.kind(), true));
        let result = call.run();
        self.0.lock().unwrap().push((call.kind(), false));
        result
    }
}

#[test]
fn a_layer_of_the_program_surrounds_all_calls_even_if_one_fails() {
    for fails in [false, true] {
        let calls = std::sync::Arc::default();
        let mut trainer = crate::model::builder()
            .epochs(1)
            .layer(Counts(std::sync::Arc::clone(&calls)))
            .on::<AfterStep>("fails", move |_| if fails { Err(Error::msg("on purpose")) } else { Ok(()) })
            .build()
            .unwrap();
        assert_eq!(trainer.fit(&mut crate::model::rows(8), None).is_err(), fails);
        let calls = calls.lock().unwrap();
        let count = |kind, begins| calls.iter().filter(|call| **call == (kind, begins)).count();
        use trainer::profile::SpanKind::{Data, Entry, Hook, Operation};
        for kind in [Data, Entry, Hook, Operation] {
            assert!(count(kind, true) > 0 && count(kind, true) == count(kind, false), "{kind:?}");
        }
        assert_eq!((count(Hook, true), count(Entry, true)), (if fails { 1 } else { 2 }, 1));
        assert!(trainer.profile().is_none());
    }
}

/// Does not do what a layer must do with calls of one kind.
#[derive(Clone, Copy)]
enum Wrong {
    Skips,
    RunsTwice,
    Fails,
}

impl trainer::Layer for Wrong {
    fn call(&self, call: &mut trainer::Call<'_>) -> Result<(), trainer::BoxError> {
        match self {
            Wrong::Skips if call.name() == "opt_step" => Ok(()),
            Wrong::RunsTwice if call.name() == "opt_step" => call.run().and_then(|()| call.run()),
            Wrong::Fails if call.name() == "opt_step" => Err("on purpose".into()),
            _ => call.run(),
        }
    }
}

#[test]
fn a_layer_runs_each_call_once_and_its_error_is_that_of_the_operation() {
    for (wrong, expected) in [
        (Wrong::Skips, "failed at opt_step, epoch 0, batch 0 on a batch of"),
        (Wrong::Skips, "a layer must run each of its calls once"),
        (Wrong::RunsTwice, "a layer must run each of its calls once"),
        (Wrong::Fails, "on purpose"),
    ] {
        let mut trainer = crate::model::builder().epochs(1).layer(wrong).build().unwrap();
        let error = trainer.fit(&mut crate::model::rows(8), None).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}
