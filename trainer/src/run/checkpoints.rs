//! The part of a run's state that concerns its checkpoints.

use std::cell::{Cell, RefCell};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use serde::{Deserialize, Serialize};

use super::{Run, SavesOfRanks};
use crate::checkpoint::unpublished::Unpublished;
use crate::checkpoint::{ActiveCheckpoint, Journal, Resume};
use crate::error::Result;
use crate::phase::Phase;
use crate::values::facts::Facts;

/// The part of a run's state that concerns its checkpoints.
#[derive(Default)]
pub(crate) struct CheckpointState {
    /// The checkpoint or folder that the next fit resumes from, if a resume is requested.
    pub(crate) resume: Option<Resume>,
    /// The checkpoint that is being written or read.
    pub(crate) active: Option<ActiveCheckpoint>,
    /// The checkpoint that a thread is writing.
    pub(crate) background: Option<BackgroundSave>,
    /// The checkpoints to write between two batches or epochs, or when the fit ends.
    pub(crate) requests: RefCell<Vec<SaveRequest>>,
    /// Whether SIGUSR1 has requested a checkpoint on any rank. Only set on rank 0.
    pub(crate) is_requested: Cell<bool>,
    /// The newest checkpoint that this process has written as rank 0.
    pub(crate) written: Option<PathBuf>,
    pub(crate) journal: Journal,
    /// The settings and hooks that decide the result, as they were when the first entry point
    /// began.
    pub(crate) facts: Option<Facts>,
    /// For each phase, the number of entry points that were skipped after a resume because they had
    /// already finished.
    pub(crate) skipped: [usize; Phase::ALL.len()],
    /// The number of calls of `predict` that have ended, with or without an error.
    pub(crate) predictions: u64,
}

impl CheckpointState {
    pub(crate) fn new(resume: Option<Resume>) -> Self {
        CheckpointState { resume, ..CheckpointState::default() }
    }

    /// The folder of the checkpoint that is being written or read.
    pub(crate) fn active_folder(&self) -> &Path {
        self.active.as_ref().map_or(Path::new(""), |active| &active.folder)
    }

    /// Requests that a checkpoint be written between two batches or epochs, unless this is a
    /// replay, which writes nothing.
    pub(crate) fn request(&self, is_replay: bool, folder: PathBuf, mode: SaveMode) {
        if is_replay {
            return;
        }
        let mut requests = self.requests.borrow_mut();
        requests.retain(|request| request.folder != folder);
        requests.push(SaveRequest { folder, mode });
    }

    /// What this rank has to write.
    #[inline]
    pub(crate) fn saves(&self) -> SavesOfRanks {
        if !self.requests.borrow().is_empty() {
            SavesOfRanks::Requested
        } else if self.background.as_ref().is_some_and(BackgroundSave::is_busy) {
            SavesOfRanks::Writing
        } else {
            SavesOfRanks::None
        }
    }

    /// Notes that this process has written a checkpoint as rank 0.
    pub(crate) fn note_written(&mut self, folder: PathBuf, history: u64) {
        self.journal.written(&folder, history);
        self.written = Some(folder);
    }
}

/// A checkpoint that a hook has requested.
#[derive(Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) struct SaveRequest {
    pub(crate) folder: PathBuf,
    pub(crate) mode: SaveMode,
}

/// How a checkpoint is written.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) enum SaveMode {
    /// Before the loop continues.
    Now,
    /// On a thread.
    InBackground,
}

/// What the threads of a [`BackgroundSave`] do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SaveStage {
    /// Each writes the files of its rank.
    Writing,
    /// The one of rank 0 publishes the checkpoint, whose files are written.
    Publishing,
}

/// A checkpoint that threads are writing, one on each rank.
pub(crate) struct BackgroundSave {
    pub(crate) active: ActiveCheckpoint,
    /// The length of its history file in bytes.
    pub(crate) history: u64,
    /// The thread that does the work of this rank. `None` if this rank has nothing left to do.
    pub(crate) thread: Option<JoinHandle<Result<Option<Unpublished>>>>,
    pub(crate) stage: SaveStage,
}

impl BackgroundSave {
    /// Whether the thread of this rank is still writing.
    pub(crate) fn is_busy(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }
}

impl Run {
    /// Returns the reason why a checkpoint that is requested from outside, such as by SIGUSR1,
    /// would not be written, or `None` if it would be written.
    pub(crate) fn why_no_checkpoint(&self) -> Option<&'static str> {
        let has_hook =
            || self.hooks.instances.iter().any(|instance| instance.checkpoints(self.folder.path()).is_some());
        match () {
            () if self.folder.is_replay => Some("a replay writes nothing"),
            () if self.settings.is_fast_dev_run() => Some("a smoke test writes nothing"),
            () if !self.fit.is_running => Some("only `fit` writes checkpoints"),
            () if !has_hook() => Some("add the hook `Checkpoint`, which writes it"),
            () => None,
        }
    }

    /// Adds the new rows of the history to the journal.
    pub(crate) fn update_journal(&mut self) -> Result<()> {
        self.checkpoints.journal.update(&self.history)
    }
}
