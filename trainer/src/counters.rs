//! The counters of the loop.

use serde::{Deserialize, Serialize};

/// Where a run is: the counters of its loop.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// The current epoch, from 0.
    pub epoch: u64,
    /// Batches of the current pass that are done: until `after_step` the index of the current one, from then on
    /// one more.
    pub batch_idx: u64,
    /// Training batches that are done, over all epochs.
    pub batches_seen: u64,
    /// Optimizer steps that took place: of all optimizers, where there is more than one.
    pub optimizer_steps: u64,
    /// Training samples that were used, over all epochs.
    pub samples_seen: u64,
}
