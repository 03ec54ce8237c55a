//! [`Replay`]: what makes a run one that repeats a part of a recorded run, and writes nothing.

use std::path::PathBuf;

use trainer_formats::certificate::Place;

use super::rehearsal::Rehearsal;

/// A run that repeats a part of a recorded run, or rehearses its first steps, and writes nothing.
#[derive(Debug)]
pub(crate) struct Replay {
    /// The number of training batches, since the start of the recorded run, after which it ends.
    pub(crate) until: u64,
    /// The position at which it ends: right after that batch, or only after the epoch.
    pub(crate) place: Place,
    /// The folder of checkpoints into which its end is saved, if another run begins with it.
    pub(crate) fork: Option<PathBuf>,
    /// Whether the states at its beginning and its end are hashed.
    pub(crate) certifies: bool,
    /// The state with which it continued.
    pub(crate) begin: Option<Mark>,
    /// The state with which it ended, if all of its batches are trained.
    pub(crate) end: Option<Mark>,
    /// Records the first steps, after which it ends, if it is a rehearsal.
    pub(crate) rehearsal: Option<Rehearsal>,
    /// Whether all of its batches are trained.
    pub(crate) has_ended: bool,
}

/// The state of a run between two batches or epochs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    /// The number of training batches so far.
    pub(crate) batches: u64,
    pub(crate) place: Place,
    /// The hash of the state.
    pub(crate) state: String,
}

impl Replay {
    /// A replay that ends right after this number of batches.
    pub(crate) fn until(batches: u64) -> Self {
        Replay {
            until: batches,
            place: Place::Batch,
            fork: None,
            certifies: false,
            begin: None,
            end: None,
            rehearsal: None,
            has_ended: false,
        }
    }
}
