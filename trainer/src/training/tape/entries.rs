//! The calls that a [`Recorder`] records, as a layer of the run.

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::recorder::{Key, Recorder};
use super::settings::Tape;
use crate::error::{BoxError, Error, Result};
use crate::run::Run;
use crate::run::context::Cx;
use crate::run::layers::{Call, Layer, Layers, Target};

/// The layer that records a tape.
pub(crate) struct Recording(Mutex<Recorder>);

impl Recording {
    pub(crate) fn new(tape: Tape) -> Self {
        Recording(Mutex::new(Recorder::new(tape)))
    }

    fn lock(&self) -> MutexGuard<'_, Recorder> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Calls `body` with the recorder, if the run has a tape. If that fails, the tape ends with a
/// warning, and the run continues.
///
/// # Errors
///
/// Returns the error in a replay, whose purpose is the tape.
pub(crate) fn with(run: &Run, body: impl FnOnce(&mut Recorder, &Run) -> Result<()>) -> Result<()> {
    run.layers().get::<Recording>().map_or(Ok(()), |recording| recording.lock().tolerated(run, body))
}

/// Calls `body` with the recorder, or returns the default if the run has no tape.
pub(crate) fn read<R: Default>(layers: &Layers, body: impl FnOnce(&mut Recorder) -> R) -> R {
    layers.get::<Recording>().map_or_else(R::default, |recording| body(&mut recording.lock()))
}

/// The recorder of a run, for the hook that writes the tape.
impl<P> Cx<P> {
    pub(crate) fn tape(&self) -> RunningTape<'_> {
        RunningTape { run: self.as_run() }
    }
}

/// The recorder of a run. Without a tape, nothing happens.
pub(crate) struct RunningTape<'r> {
    run: &'r Run,
}

impl RunningTape<'_> {
    /// The path of the tape, if one was set.
    pub(crate) fn path(&self) -> Option<PathBuf> {
        read(self.run.layers(), |recorder| recorder.settings().path.clone())
    }

    /// The number of bytes that have not been written to the file yet.
    pub(crate) fn pending(&self) -> usize {
        read(self.run.layers(), |recorder| recorder.pending())
    }

    /// Takes the bytes that have not been written to the file yet.
    pub(crate) fn take(&self) -> Vec<u8> {
        read(self.run.layers(), Recorder::take)
    }

    /// Starts to record an entry point.
    pub(crate) fn start(&self) -> Result<()> {
        with(self.run, Recorder::start)
    }

    /// Continues after a resume.
    pub(crate) fn resume(&self) -> Result<()> {
        with(self.run, Recorder::resume)
    }

    /// Notes that a checkpoint of the current state is about to be written.
    pub(crate) fn note_checkpoint(&self) -> Result<()> {
        with(self.run, |recorder, run| recorder.saved(run.progress().train_batches))
    }

    /// Records the state, if an interval ends.
    pub(crate) fn record_interval(&self, is_end: bool) -> Result<()> {
        with(self.run, |recorder, run| recorder.interval(run, is_end))
    }

    /// Ends the recording, and returns a warning for each pair of hooks that changed the same value
    /// although nothing orders the two explicitly.
    pub(crate) fn end(&self) -> Vec<String> {
        read(self.run.layers(), |recorder| {
            recorder.end();
            recorder.conflicts(&self.run.hooks().table)
        })
    }
}

impl Recorder {
    fn tolerated(&mut self, run: &Run, body: impl FnOnce(&mut Recorder, &Run) -> Result<()>) -> Result<()> {
        let record = || -> Result<(), BoxError> { Ok(body(self, run)?) };
        if run.is_replay() {
            return record().map_err(Error::from);
        }
        if run.reports().tolerate("the tape", record)?.is_none() {
            run.reports().note_incomplete("the tape".to_owned());
            self.end();
        }
        Ok(())
    }
}

/// Returns the entry of a call. `None` for one that is not recorded: an entry point, or a hook that
/// only observes and has the key `writes`.
fn key(call: &Call<'_>) -> Option<Key> {
    match (call.target, call.module()) {
        (Target::Entry, _) => None,
        (Target::Loader, _) => Some(Key::Loader),
        (Target::Hook(hook), _) => {
            let definition = &call.run.hooks().table.hooks()[hook].definition;
            (!definition.observes || !definition.writes).then_some(Key::Hook(hook))
        }
        (_, Some(known)) => Some(Key::Module(known)),
        (Target::Operation(row) | Target::Body(row), None) => Some(Key::Operation(row)),
    }
}

/// Whether a call has ended because all batches of a replay have been trained. What is called
/// afterwards is not part of the replay.
fn is_end_of_replay(result: &Result<(), BoxError>) -> bool {
    let error = result.as_ref().err().and_then(|error| error.downcast_ref::<Error>());
    error.is_some_and(Error::is_end_of_replay)
}

impl Layer for Recording {
    fn call(&self, call: &mut Call<'_>) -> Result<(), BoxError> {
        let Some(key) = key(call) else { return call.run() };
        self.lock().tolerated(call.run, |recorder, run| {
            recorder.load(run)?;
            recorder.enter(run, key)
        })?;
        let result = call.run();
        if is_end_of_replay(&result) {
            self.lock().end();
            return result;
        }
        let left = self.lock().tolerated(call.run, |recorder, run| recorder.leave(run, key));
        result.and(left.map_err(Into::into))
    }
}
