//! The state of a run that concerns its checkpoints.

use std::cell::RefCell;
use std::path::PathBuf;
use std::thread::JoinHandle;

use serde::{Deserialize, Serialize};

use super::Run;
use crate::checkpoint::{ActiveCheckpoint, Journal, Resume};
use crate::error::Result;
use crate::phase::Phase;
use crate::values::facts::Facts;

/// The state of a run that concerns its checkpoints.
#[derive(Default)]
pub(crate) struct CheckpointState {
    /// The checkpoint or folder that the next fit resumes from, if one is requested.
    pub(crate) resume: Option<Resume>,
    /// The checkpoint that is being written or read.
    pub(crate) active: Option<ActiveCheckpoint>,
    /// The checkpoint that a thread is writing.
    pub(crate) background: Option<BackgroundSave>,
    /// The checkpoints to write between two batches or epochs, or when the fit ends.
    pub(crate) requests: RefCell<Vec<SaveRequest>>,
    pub(crate) journal: Journal,
    /// What decides the result, as the program had set it when its first entry point began.
    pub(crate) facts: Option<Facts>,
    /// The number of entry points of each phase that were skipped after a resume, because they had ended.
    pub(crate) skipped: [usize; Phase::ALL.len()],
    /// The number of calls of `predict` that have ended, with or without an error.
    pub(crate) predictions: u64,
}

impl CheckpointState {
    pub(crate) fn new(resume: Option<Resume>) -> Self {
        CheckpointState { resume, ..CheckpointState::default() }
    }
}

/// A checkpoint that a hook has requested.
#[derive(Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) struct SaveRequest {
    pub(crate) folder: PathBuf,
    pub(crate) in_background: bool,
}

/// A checkpoint that a thread is writing.
pub(crate) struct BackgroundSave {
    pub(crate) active: ActiveCheckpoint,
    /// The length of its history file in bytes.
    pub(crate) history: u64,
    pub(crate) thread: JoinHandle<Result<()>>,
}

impl Run {
    pub(crate) fn request_checkpoint(&self, folder: PathBuf, in_background: bool) {
        if self.replay.is_some() {
            return; // a replay writes nothing
        }
        let mut requests = self.checkpoints.requests.borrow_mut();
        requests.retain(|request| request.folder != folder);
        requests.push(SaveRequest { folder, in_background });
    }
}
