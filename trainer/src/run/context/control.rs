//! Methods of [`Cx`] that log, control the loop and return results.

use super::Cx;
use crate::error::Error;
use crate::lifecycle::{
    CanEndEpoch, CanLog, CanRollBack, CanSkipBatch, CanStop, HasError, HasMetrics, available,
};
use crate::log::history::Metrics;
use crate::log::{IntoValue, Reduce};
use crate::moment::OnAllRanks;
use crate::run::StoppedBy;

/// # Logging
///
/// Histograms, images and texts have [methods of their own](Cx::log_histogram).
impl<P> Cx<P> {
    /// Logs a number, or a one-element tensor, as the metric `phase/name`, or as
    /// `phase/loader/name` in a pass over a named [loader](Cx::loader).
    ///
    #[doc = available!(CanLog)]
    ///
    /// While a batch is being processed, the value contributes to the mean over the pass, weighted
    /// by the [weight](crate::Task::weight) of the batch, and logging a tensor on a GPU does not
    /// synchronize with it. At any other time the value immediately becomes the metric. A value
    /// that cannot be logged, such as a tensor with more than one element, ends the run with an
    /// error that names the hook.
    #[doc(alias("log_dict", "add_scalar"))]
    pub fn log(&self, name: impl AsRef<str>, value: impl IntoValue)
    where
        P: CanLog,
    {
        self.run.log(Reduce::Mean, name.as_ref(), value.into_value(), None);
    }

    /// Logs a mean over `weight` elements like [`log`](Cx::log). Use this for values whose weight
    /// differs from the [weight](crate::Task::weight) of the batch, such as an accuracy over
    /// samples in a task whose loss is a mean over tokens. A weight that is negative, infinite or
    /// NaN ends the run with an error that names the hook.
    ///
    #[doc = available!(CanLog)]
    pub fn log_weighted(&self, name: impl AsRef<str>, value: impl IntoValue, weight: f64)
    where
        P: CanLog,
    {
        self.run.log(Reduce::Mean, name.as_ref(), value.into_value(), Some(weight));
    }

    /// Logs a value like [`log`](Cx::log), but reduces the values of a pass with `reduce` instead
    /// of averaging them. Each name must always be logged with the same reduction. Between batches
    /// there is nothing to reduce: the value immediately becomes the metric.
    ///
    #[doc = available!(CanLog)]
    pub fn log_as(&self, name: impl AsRef<str>, value: impl IntoValue, reduce: Reduce)
    where
        P: CanLog,
    {
        self.run.log(reduce, name.as_ref(), value.into_value(), None);
    }
}

/// # Control of the loop
impl<P> Cx<P> {
    /// Skips this batch: none of its operations run, and only
    /// [`batch_idx`](crate::Counters::batch_idx) advances.
    ///
    #[doc(alias = "CancelBatchException")]
    #[doc = available!(CanSkipBatch)]
    #[doc = available!(OnAllRanks)]
    pub fn skip_batch(&mut self)
    where
        P: CanSkipBatch + OnAllRanks,
    {
        self.run.requests.skip_batch(true);
    }

    /// Ends the current pass over data, in training or evaluation, after this batch. If an
    /// accumulation window is still open at that time, one more batch is trained to close it.
    ///
    #[doc(alias("CancelEpochException", "should_epoch_stop"))]
    #[doc = available!(CanEndEpoch)]
    pub fn end_epoch(&mut self)
    where
        P: CanEndEpoch,
    {
        self.run.requests.end_pass(self.run.ranks.world.is_solo());
    }

    /// Stops training after this batch: no further pass begins, and the points after the running
    /// operations fire. A validation that is running is completed. An open accumulation window is
    /// closed by one more batch, and training continues until
    /// [`min_epochs`](crate::TrainerBuilder::min_epochs) and
    /// [`min_steps`](crate::TrainerBuilder::min_steps) are reached.
    ///
    /// If the run ends earlier than planned, the reason is printed on standard error, and is in
    /// [`Summary::stopped`](crate::Summary::stopped). If several hooks stop training, the first
    /// reason counts.
    ///
    #[doc(alias("should_stop", "should_training_stop", "CancelFitException"))]
    #[doc = available!(CanStop)]
    pub fn stop(&mut self, reason: impl Into<String>)
    where
        P: CanStop,
    {
        let is_solo = self.run.ranks.world.is_solo();
        self.run.requests.stop(reason.into(), StoppedBy::Hook, is_solo);
    }

    /// Keeps a copy of the state of the run, so that [`roll_back`](Cx::roll_back) can return to it:
    /// weights, optimizers, gradients, random numbers, counters, logged values, and the
    /// [state](crate::checkpoint::State) of the task and of hooks. The copy is made before the next
    /// batch of training, and replaces the previous one. It is kept in CPU memory, included in
    /// checkpoints, and dropped when the next pass over the training data begins.
    ///
    #[doc = available!(CanRollBack)]
    pub fn keep_state(&mut self)
    where
        P: CanRollBack,
    {
        self.run.requests.keep_state(true);
    }

    /// Before the next batch of training, returns to the state that [`keep_state`](Cx::keep_state)
    /// kept, and continues with the batch after this one. The batches since that state, including
    /// this one, are skipped. If several processes train together, all of them roll back.
    ///
    #[doc = available!(CanRollBack)]
    ///
    /// Only [`batch_idx`](crate::Counters::batch_idx) keeps its value, as for batches that
    /// [`skip_batch`](Cx::skip_batch) skips; the other counters, and with them learning-rate
    /// schedules, return to the kept state. As on a resume, rows that were added to the history and
    /// to log files after the state was kept are removed; rows of a file are moved to
    /// `<file>.before-resume-<n>`. The tape of the run keeps all its records. A warning, which
    /// `run.json` lists in `roll_backs`, reports the skipped batches and the `reason`. Checkpoints
    /// that were requested after this batch, and validations that are due after it, are omitted.
    /// Requests to stop remain in effect.
    ///
    /// A hook that must remember its roll-backs, for example to limit their number, implements
    /// [`State::rolls_back`](crate::checkpoint::State::rolls_back).
    ///
    /// The run ends with an error if no state was kept in the current pass over the training data.
    pub fn roll_back(&mut self, reason: impl Into<String>)
    where
        P: CanRollBack,
    {
        self.run.requests.roll_back(reason.into());
    }
}

/// # Results
impl<P> Cx<P> {
    /// The reduced metrics of the most recent passes, keyed `phase/name`.
    ///
    #[doc = available!(HasMetrics)]
    #[must_use]
    pub fn metrics(&self) -> Metrics
    where
        P: HasMetrics,
    {
        self.run.log.borrow().metrics()
    }

    /// The error that ended the run.
    ///
    #[doc = available!(HasError)]
    #[must_use]
    pub fn error(&self) -> &Error
    where
        P: HasError,
    {
        self.run.occasion.error.as_ref().expect("`after_error` only fires for an error")
    }
}
