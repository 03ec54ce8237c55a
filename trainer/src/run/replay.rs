//! [`Replay`]: the state of a run that repeats a part of a recorded run and writes nothing.

use std::path::PathBuf;

use trainer_formats::certificate::Place;

use super::rehearsal::Rehearsal;

/// The state of a run that repeats a part of a recorded run, or rehearses the first steps of a fit,
/// and writes nothing.
#[derive(Debug)]
pub(crate) struct Replay {
    /// The replay ends after this many training batches, counted from the start of the recorded
    /// run.
    pub(crate) until: u64,
    /// The position at which the replay ends: right after the last batch, or only after its epoch.
    pub(crate) place: Place,
    /// The checkpoint folder in which the final state is saved, if a fork will start from it.
    pub(crate) fork: Option<PathBuf>,
    /// Whether the states at the beginning and at the end of the replay are hashed.
    pub(crate) certifies: bool,
    /// The state with which the replay began.
    pub(crate) begin: Option<Mark>,
    /// The state with which the replay ended, once all of its batches are trained.
    pub(crate) end: Option<Mark>,
    /// In a rehearsal, records the first steps of the fit. The run ends after these steps.
    pub(crate) rehearsal: Option<Rehearsal>,
    /// Whether all batches of the replay are trained.
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
    /// Creates a replay that ends right after this number of batches.
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
