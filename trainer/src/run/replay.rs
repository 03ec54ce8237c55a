//! [`Replay`]: the state of a run that repeats a part of a recorded run and writes nothing.

use std::path::PathBuf;

/// The state of a run that repeats a part of a recorded run, or rehearses the first steps of a fit,
/// and writes nothing.
#[derive(Debug)]
pub(crate) struct Replay {
    /// The replay ends after this many training batches, counted from the start of the recorded
    /// run.
    pub(crate) until: u64,
    /// The checkpoint folder in which the final state is saved, if a fork will start from it.
    pub(crate) fork: Option<PathBuf>,
}

impl Replay {
    /// Creates a replay that ends right after this number of batches.
    pub(crate) fn until(batches: u64) -> Self {
        Replay { until: batches, fork: None }
    }
}
