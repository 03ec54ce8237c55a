//! [`Plan`]: how much a run is planned to do.

/// How much a run is planned to do: see [`Cx::plan`](crate::Cx::plan). What concerns the fit is known
/// from `before_fit` on.
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
