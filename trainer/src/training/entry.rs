//! Every way into the trainer, and every way out: `setup` first, `teardown` last, exactly once.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use super::Summary;
use crate::error::{Error, OperationError, Result};
use crate::lifecycle::at;
use crate::metrics::Metrics;
use crate::moment::MomentInfo;
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
    run.panicked = None;
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        run.fire::<at::setup>()?;
        body(run)
    }));

    let (mut result, mut panic) = match outcome {
        Ok(result) => (result, None),
        Err(payload) => (Err(panicked(run, &payload)), Some(payload)),
    };
    run.clear_step();
    if let Err(error) = result {
        run.error = Some(error);
        run.log.failed = None;
        let (_, late) = run.fire_all::<at::after_error>();
        panic = panic.or(late);
        result = Err(run.error.take().expect("set above; hooks can only read it"));
        // Half a step's gradients must not count in the next.
        if let Some(optimizer) = &mut run.optimizer {
            let _ = optimizer.zero_grad();
        }
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
    match run.panicked.take() {
        None => locate(run, Error::Panic(Box::new(text))),
        Some(hook) => run.hook_failed(hook, run.table.hook(hook).definition.moment, text.into()),
    }
}

/// Says in which operation it happened, and on which batch, if that is not known yet.
pub(super) fn locate(run: &Run, source: Error) -> Error {
    if matches!(source, Error::Hook(_) | Error::Operation(_)) {
        return source;
    }
    let on = run.describe_batch();
    Error::Operation(Box::new(OperationError { place: run.place(run.operation), on, source }))
}
