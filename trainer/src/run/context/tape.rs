//! Access to a run for the hook that writes the tape.

use crate::error::Result;
use crate::run::context::Cx;
use crate::run::tape::{self, Recorder, Tape};

impl<P> Cx<P> {
    /// Calls `body` with the recorder, if the trainer has a tape.
    fn recorder<R: Default>(&self, body: impl FnOnce(&mut Recorder) -> R) -> R {
        self.run.tape.borrow_mut().as_deref_mut().map_or_else(R::default, body)
    }

    /// The settings of the tape.
    pub(crate) fn tape(&self) -> Option<Tape> {
        self.recorder(|recorder| Some(recorder.settings().clone()))
    }

    /// The number of recorded bytes that have not been taken yet.
    pub(crate) fn pending_tape(&self) -> usize {
        self.recorder(|recorder| recorder.pending())
    }

    /// Takes what was recorded since the last call.
    pub(crate) fn take_tape(&self) -> Vec<u8> {
        self.recorder(Recorder::take)
    }

    /// Starts recording the entry point.
    pub(crate) fn start_tape(&self) -> Result<()> {
        tape::with(&self.run, |recorder, run| recorder.start(run, run.place.operation.name))
    }

    /// Continues recording after a resume.
    pub(crate) fn resume_tape(&self) -> Result<()> {
        tape::with(&self.run, Recorder::resume)
    }

    /// Records the state, if a record of it is due or the fit ends.
    pub(crate) fn record_state(&self, is_end: bool) -> Result<()> {
        tape::with(&self.run, |recorder, run| recorder.interval(run, is_end))
    }

    /// Notes that a checkpoint is about to be written.
    pub(crate) fn note_checkpoint(&self) -> Result<()> {
        tape::with(&self.run, |recorder, run| recorder.saved(run.progress.train_batches))
    }

    /// Stops recording the entry point, and warns about hooks that changed the same value although
    /// nothing orders them explicitly.
    pub(crate) fn end_tape(&self) {
        let warnings = self.recorder(|recorder| {
            recorder.end();
            recorder.conflicts(&self.run.hooks.table)
        });
        warnings.into_iter().for_each(|warning| self.warn(warning));
    }
}
