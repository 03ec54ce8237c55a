//! [`Recording`]: the layer that records what hooks and operations change.

use super::recorder::{Key, Recorder};
use crate::error::{BoxError, Error, Origin, Result};
use crate::run::Run;
use crate::run::layers::{Call, Layer, Target};

/// Calls `body` with the recorder, if there is one. If that fails, the tape ends with a warning,
/// and the run continues.
///
/// # Errors
///
/// Returns the error in a replay, whose purpose is the tape.
pub(crate) fn with(run: &Run, body: impl FnOnce(&mut Recorder, &Run) -> Result<()>) -> Result<()> {
    let record = || -> Result<(), BoxError> {
        match &mut *run.tape.borrow_mut() {
            Some(recorder) => Ok(body(recorder, run)?),
            None => Ok(()),
        }
    };
    if run.replay.is_some() {
        return record().map_err(Error::from);
    }
    if run.reports.tolerate("the tape", record)?.is_none() {
        run.reports.note_incomplete("the tape".to_owned());
        if let Ok(mut tape) = run.tape.try_borrow_mut()
            && let Some(recorder) = &mut *tape
        {
            recorder.end();
        }
    }
    Ok(())
}

/// Records what each call changes.
#[derive(Default)]
pub(crate) struct Recording {
    /// The batch that was drawn last.
    batch: Option<Origin>,
}

/// Returns the entry of a call. `None` for one that is not recorded: an entry point, or a hook that
/// only observes and has the key `writes`.
fn key(call: &Call<'_>) -> Option<Key> {
    match (call.target, call.module()) {
        (Target::Entry, _) => None,
        (Target::Loader, _) => Some(Key::Loader),
        (Target::Hook(hook), _) => {
            let definition = &call.run.hooks.table.hooks()[hook].definition;
            (!definition.observes || !definition.writes).then_some(Key::Hook(hook))
        }
        (_, Some(known)) => Some(Key::Module(known)),
        (Target::Operation(row) | Target::Body(row), None) => Some(Key::Operation(row)),
    }
}

impl Layer for Recording {
    fn before(&mut self, call: &Call<'_>) -> Result<()> {
        let Some(key) = key(call) else { return Ok(()) };
        let run = call.run;
        // The batch that a step begins with is what the loader has changed.
        if run.step.batch_len.is_some() && run.fit.failed_mid_step && self.batch != Some(run.dispatch.origin)
        {
            self.batch = Some(run.dispatch.origin);
            with(run, Recorder::loaded)?;
        }
        with(run, |recorder, run| recorder.enter(run, key))
    }

    fn after(&mut self, call: &Call<'_>) -> Result<()> {
        match key(call).filter(|_| !std::thread::panicking()) {
            Some(key) => with(call.run, |recorder, run| recorder.leave(run, key)),
            None => Ok(()),
        }
    }
}
