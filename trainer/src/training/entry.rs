//! Every way into the trainer, and every way out: `setup` first, `teardown` last, exactly once.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use super::Summary;
use crate::error::{Error, OperationError, Result};
use crate::lifecycle::at;
use crate::moment::MomentInfo;
use crate::phase::Phase;
use crate::run::{Requests, Run};

/// Runs an entry of the trainer.
///
/// An error or a panic fires `after_error`; then `teardown` fires, whatever happened. The first
/// error is the one that is returned; a panic goes on.
pub(super) fn enter(
    run: &mut Run,
    phase: Phase,
    operation: &'static MomentInfo,
    body: impl FnOnce(&mut Run) -> Result<Vec<crate::Metrics>>,
) -> Result<Summary> {
    run.phase = phase;
    run.operation = operation;
    run.requests = Requests::default();
    run.log.metrics.clear();
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        run.fire::<at::setup>()?;
        body(run)
    }));

    let (result, panic) = match outcome {
        Ok(result) => (result, None),
        Err(payload) => {
            let error = Error::Panic(Box::new(text_of(&*payload)));
            (Err(locate(run, error)), Some(payload))
        }
    };
    let result = match result {
        Ok(history) => {
            run.phase = phase;
            run.fire::<at::teardown>().map(|()| history)
        }
        Err(error) => {
            run.error = Some(error);
            // The first error is the one that counts: what fails while cleaning up comes of it.
            let _ = run.fire::<at::after_error>();
            run.clear_step();
            run.phase = phase;
            let _ = run.fire::<at::teardown>();
            Err(run.error.take().expect("set above; hooks can only read it"))
        }
    };
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

/// Says in which operation it happened, and on which batch.
pub(super) fn locate(run: &Run, source: Error) -> Error {
    let on = run.describe_batch();
    Error::Operation(Box::new(OperationError { place: run.place(run.operation), on, source }))
}

fn text_of(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(ToString::to_string);
    let text =
        text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned());
    // tch unwraps: what libtorch said stands in debug format within the panic's message.
    let said = text.split_once("on an `Err` value: Torch(\"").map_or(&*text, |(_, said)| said);
    said.split("\\nException raised from").next().unwrap_or(said).to_owned()
}
