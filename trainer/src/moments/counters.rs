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

/// How much a run is planned to do: see [`Cx::plan`](crate::Cx::plan). What concerns the fit is
/// known from `before_fit` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Plan {
    /// The number of batches in the current or most recent pass over data; `None` if it is unknown,
    /// because the loader does not report it and no setting limits it.
    pub batches: Option<u64>,
    /// The total number of epochs, including those of earlier fits, or `None` if only
    /// [`max_steps`](crate::TrainerBuilder::max_steps) or
    /// [`max_time`](crate::TrainerBuilder::max_time) ends training.
    pub epochs: Option<u64>,
    /// The total number of optimizer steps, including those of earlier fits: the step at which a
    /// learning-rate schedule ends. `None` if neither the number of batches and epochs nor
    /// [`max_steps`](crate::TrainerBuilder::max_steps) is known, or if `train_step` has taken more
    /// steps for a batch than [`Task::steps_per_batch`](crate::Task::steps_per_batch) returns.
    ///
    /// Skipped batches and an early stop result in fewer steps.
    pub steps: Option<u64>,
    /// The number of batches in an accumulation window of the current epoch:
    /// [`accumulate`](crate::TrainerBuilder::accumulate). The last window of an epoch can be
    /// shorter.
    pub accumulation: u64,
    /// Whether a setting limits the batches of each pass over data in this phase, such as
    /// [`limit_train_batches`](crate::TrainerBuilder::limit_train_batches).
    pub is_limited: bool,
    /// Whether the current `fit` validates: it has validation data, and the validation of at least
    /// one loader is due before the planned end. A stop can still end the fit before its first
    /// validation.
    pub validates: bool,
}
