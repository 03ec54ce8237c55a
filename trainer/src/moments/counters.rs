//! The counters of the loop.

use serde::{Deserialize, Serialize};

/// The counters of the training loop: the current position of a run.
///
/// ```standalone_crate
/// use trainer::prelude::*;
///
/// /// Prints the position of training every 100 batches.
/// #[hook(only = train, every = 100)]
/// fn position(cx: &Cx<AfterStep>) {
///     let counters = cx.counters();
///     println!("epoch {}, step {}", counters.epoch, counters.optimizer_steps);
/// }
/// # fn main() {}
/// ```
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// The index of the current epoch, from 0.
    #[doc(alias = "current_epoch")]
    pub epoch: u64,
    /// The number of batches completed in the current pass, including skipped ones. While a batch
    /// is being processed, this is its index, from 0; at `after_step` and `after_predict_step`, the
    /// batch is already counted.
    pub batch_idx: u64,
    /// The number of training batches completed over all epochs, excluding skipped ones.
    pub batches_seen: u64,
    /// The number of optimizer steps taken. Learning-rate schedules, `max_steps` and intervals in
    /// steps count the same steps. If there are several optimizers, those that take turns in a
    /// batch count once: the number is increased in each batch by the steps of the optimizer that
    /// stepped most often. [`Cx::steps_of`](crate::Cx::steps_of) returns the number of steps of
    /// each.
    #[doc(alias = "global_step")]
    pub optimizer_steps: u64,
    /// The number of training samples used, over all epochs and ranks.
    pub samples_seen: u64,
}
