//! Every way into the trainer, and every way out: `setup` first, `teardown` last, exactly once.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use super::Summary;
use crate::error::{Error, Result};
use crate::lifecycle::at;
use crate::metrics::Metrics;
use crate::moment::MomentInfo;
use crate::next::Frame;
use crate::phase::Phase;
use crate::run::{Panic, Requests, Run, panic_text};

/// Runs an entry of the trainer.
///
/// An error or a panic fires `after_error`; then `teardown` fires, whatever happened: all of their
/// hooks, also after one of them failed. The first error is the one that is returned; a panic goes on.
pub(super) fn enter(
    run: &mut Run,
    phase: Phase,
    operation: &'static MomentInfo,
    body: impl FnOnce(&mut Run) -> Result<Vec<Metrics>>,
) -> Result<Summary> {
    run.phase = phase;
    run.operation = operation;
    run.requests = Requests::default();
    run.log.clear();
    run.running = None;
    (run.frame, run.passing) = (Frame::default(), false);
    run.reaching.clear();
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        run.fire::<at::setup>()?;
        body(run)
    }));

    let (mut result, mut panic) = match outcome {
        Ok(result) => (result, None),
        Err(payload) => (Err(panicked(run, &payload)), Some(payload)),
    };
    run.clear_step();
    run.reaching.clear();
    if let Err(error) = result {
        let after = (run.phase, run.step);
        // `after_error` is told where it happened.
        if let Some(place) = error.place() {
            (run.phase, run.step) = (place.phase, place.step);
        }
        run.error = Some(error);
        run.log.failed = None;
        let (_, late) = run.fire_all::<at::after_error>();
        (run.phase, run.step) = after;
        panic = panic.or(late);
        result = Err(run.error.take().expect("set above; hooks can only read it"));
        // Half a step's gradients must not count in the next.
        let _ = run.optimizers.zero_grad();
    }
    run.phase = phase;
    let (last, late) = run.fire_all::<at::teardown>();
    panic = panic.or(late);
    let result = result.and_then(|history| last.map(|()| history));

    if let Some(payload) = panic {
        // The panic itself says neither the step nor the batch.
        if let Err(error) = &result {
            eprintln!("{error}");
        }
        resume_unwind(payload);
    }
    let history = result?;
    let stopped = run.requests.stop.take();
    Ok(Summary { step: run.step, metrics: run.log.metrics.clone(), history, stopped })
}

/// The error of a panic: of the hook that was running, else of the operation.
fn panicked(run: &mut Run, payload: &Panic) -> Error {
    let text = panic_text(&**payload);
    match run.running.take() {
        None => run.locate(Error::Panic(Box::new(text))),
        Some(hook) => run.hook_failed(hook, run.table.hook(hook).definition.moment, text.into()),
    }
}
