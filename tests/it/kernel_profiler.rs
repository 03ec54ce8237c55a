//! `KernelProfiler`: the traces that it writes, on every exit.
//!
//! libtorch has one profiler per process, so only one test can record at a time.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use trainer::hooks::KernelProfiler;
use trainer::prelude::*;
use trainer::testing::Harness;

use crate::support::{parameters, scratch};

/// Returns a guard that keeps the other tests of this module waiting until it is dropped.
fn alone() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the number of calls of an operator in a trace.
fn calls(path: &Path, operator: &str) -> usize {
    let trace: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    events.iter().filter(|event| event["name"] == operator && event["ph"] == "X").count()
}

#[test]
fn the_operators_of_a_range_of_batches_are_recorded() {
    let _alone = alone();
    let folder = scratch("kernels");
    let plain = Harness::small().epochs(2).run().unwrap();
    // The last batch of the first epoch, and two of the second; a validation is between them.
    let hook = || KernelProfiler::new(folder.join("kernels.json"), 3..6);
    let outcome = Harness::small().epochs(2).hook(hook()).run().unwrap();
    assert_eq!(parameters(&outcome.trainer), parameters(&plain.trainer), "the run is the same");
    let validated = 2;
    assert_eq!(calls(&folder.join("kernels.json"), "aten::nll_loss"), 3 + validated);
    assert_eq!(calls(&folder.join("kernels.json"), "aten::linear"), 2 * (3 + validated));
    // Gradients are computed within the range, by the same thread.
    assert!(calls(&folder.join("kernels.json"), "autograd::engine::evaluate_function: AddmmBackward0") > 0);

    // A second run does not replace the file, and can record the shapes.
    Harness::small().hook(hook().shapes(true)).run().unwrap();
    let text = fs::read_to_string(folder.join("kernels-2.json")).unwrap();
    assert!(text.contains("Input Dims") && calls(&folder.join("kernels-2.json"), "aten::linear") >= 2);
    assert!(!fs::read_to_string(folder.join("kernels.json")).unwrap().contains("Input Dims"));
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_run_that_ends_within_the_range_writes_what_was_recorded() {
    let _alone = alone();
    let folder = scratch("kernels-exits");
    let path = |name: &str| folder.join(name);
    let hook = |name: &str| KernelProfiler::new(path(name), 1..100);
    Harness::small().hook(hook("finished")).run().unwrap();
    assert!(Harness::small().hook(hook("cancelled")).cancel_after(3).run().unwrap().result.is_err());
    let failed = Harness::small().hook(hook("failed")).configure(|builder| {
        builder.on::<AfterLoss>("fail", |cx| match cx.counters().batch_idx {
            2 => Err(Error::msg("lost")),
            _ => Ok(()),
        })
    });
    assert!(failed.run().unwrap().result.is_err());
    let panicking = Harness::small()
        .hook(hook("panicked"))
        .configure(|builder| builder.on::<AfterLoss>("panic", |cx| assert!(cx.counters().batch_idx < 2)));
    catch_unwind(AssertUnwindSafe(|| panicking.run())).unwrap_err();
    for (name, batches) in [("cancelled", 2), ("failed", 2), ("panicked", 2)] {
        assert_eq!(calls(&path(name), "aten::nll_loss"), batches, "{name}");
    }
    // Three training batches from the second on, and two validation batches.
    assert_eq!(calls(&path("finished"), "aten::nll_loss"), 3 + 2);
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_concurrent_recording_is_refused_and_the_first_continues() {
    let _alone = alone();
    let folder = scratch("kernels-two");
    let first = KernelProfiler::new(folder.join("first.json"), 0..4);
    let second = KernelProfiler::new(folder.join("second.json"), 2..3);
    let outcome = Harness::small().hook(first).hook(second).run().unwrap();
    let warnings = &outcome.summary().warnings;
    let expected = "another recording of libtorch's profiler is active, and a process can only have one: record the ranges \
                    one after the other; the run continues";
    assert!(warnings.iter().any(|text| text.contains(expected)), "{warnings:?}");
    assert_eq!(calls(&folder.join("first.json"), "aten::nll_loss"), 4);
    assert!(!folder.join("second.json").exists());

    // Consecutive recordings are accepted.
    let hook = |name: &str, batches| KernelProfiler::new(folder.join(name), batches);
    Harness::small().hook(hook("0.json", 0..2)).hook(hook("2.json", 2..4)).run().unwrap();
    assert_eq!(calls(&folder.join("0.json"), "aten::nll_loss"), 2);
    assert_eq!(calls(&folder.join("2.json"), "aten::nll_loss"), 2);
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_missing_folder_is_refused() {
    let refused = |hook: KernelProfiler| {
        let error = Harness::small().hook(hook).run().unwrap().error().to_string();
        error.split_once(" failed at setup: ").unwrap().1.to_owned()
    };
    let absent = std::env::temp_dir().join("trainer-tests-absent");
    assert_eq!(
        refused(KernelProfiler::new(absent.join("kernels.json"), 0..1)),
        format!("the trace cannot be written: `{}` is not an existing folder; create it", absent.display())
    );
}
