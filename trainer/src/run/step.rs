//! [`StepData`]: the current batch, its prediction and its loss.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use tch::{Tensor, nn};

use super::{Amount, Ranks, Run, RunHooks};
use crate::distributed::current;
use crate::error::{Error, Result, discard_panic};
use crate::hook::instance::TASK;
use crate::optim::Optimizers;
use crate::phase::Phase;

/// Type-erased access to the task, and to the batch and the prediction of the current step.
///
/// The task itself is the value of an [`Instance`](crate::hook::instance::Instance), because its
/// own hooks may borrow it. Methods that need the task take it as an argument.
pub(crate) trait AnyTask: Any + Send {
    /// The batch, as an `Option` of the task's batch type, and the name of that type.
    fn batch(&self) -> (&dyn Any, &'static str);

    /// Mutable access to the batch, as an `Option`, and the name of the batch type.
    fn batch_mut(&mut self) -> (&mut dyn Any, &'static str);

    /// The prediction, as an `Option` of the task's prediction type, and the name of that type.
    fn pred(&self) -> (&dyn Any, &'static str);

    /// Calls `visit` with each tensor of the batch.
    fn visit_batch(&self, visit: &mut dyn FnMut(&Tensor));

    /// Calls `visit` with each tensor of the prediction.
    fn visit_pred(&self, visit: &mut dyn FnMut(&Tensor));

    /// Mutable access to the prediction, as an `Option`, and the name of the prediction type.
    fn pred_mut(&mut self) -> (&mut dyn Any, &'static str);

    /// Drops the batch and the prediction.
    fn clear(&mut self);

    /// Describes the batch for error messages; empty if there is no batch.
    fn describe_batch(&self) -> String;

    /// The store that holds the variables of the task.
    fn vars<'t>(&self, task: &'t dyn Any) -> Option<&'t nn::VarStore>;

    /// Whether the task provides predictions and targets for metrics.
    fn has_metric_inputs(&self, task: &dyn Any) -> bool;

    /// Returns the prediction and the target for metrics; `None` if the batch has no target.
    fn metric_inputs(&self, task: &dyn Any) -> Result<Option<(Tensor, Tensor)>>;

    /// Returns the function that computes the prediction and the loss of the batch again.
    fn recompute_loss(&self) -> fn(&mut Run) -> Result<Tensor>;
}

/// The current batch, its prediction and its loss.
pub(crate) struct StepData {
    /// The batch and the prediction; `None` while hooks at modules use the run, because the task
    /// then holds the batch.
    pub(crate) data: Option<Box<dyn AnyTask>>,
    /// The number of samples in the batch; `None` between batches.
    pub(crate) batch_len: Option<u64>,
    /// The weight of the batch: the number of elements over which the loss is averaged.
    pub(crate) weight: f64,
    /// The weight and the number of samples of the batch over all ranks.
    pub(crate) total: Amount,
    /// Whether a hook may have changed the batch since its weight was computed.
    pub(crate) is_batch_changed: bool,
    pub(crate) loss: Option<Tensor>,
    /// The product of the factors passed to `scale_loss`.
    pub(crate) loss_scale: f64,
    /// The number of predictions computed so far. A `ForwardDone` holds the value that identifies
    /// its prediction.
    pub(crate) preds: u64,
    /// The number of losses computed so far. A `LossDone` holds the value that identifies its loss.
    pub(crate) losses: u64,
    /// The number of losses computed before the current batch.
    pub(crate) losses_before: u64,
    /// The number of optimizer steps since the batch began: of the optimizer that has taken the
    /// most.
    pub(crate) steps: u64,
    /// The number of the current or most recent optimizer step, counted from 1 as
    /// `Counters::optimizer_steps` counts them.
    pub(crate) step_number: u64,
}

impl StepData {
    /// Creates empty data.
    pub(crate) fn new(data: Box<dyn AnyTask>) -> Self {
        StepData {
            data: Some(data),
            batch_len: None,
            weight: 1.0,
            total: Amount::default(),
            is_batch_changed: false,
            loss: None,
            loss_scale: 1.0,
            preds: 0,
            losses: 0,
            losses_before: 0,
            steps: 0,
            step_number: 0,
        }
    }

    /// The store that holds the variables; `None` while one of the task's own hooks is running.
    pub(crate) fn store<'t>(&self, task: Option<&'t dyn Any>) -> Option<&'t nn::VarStore> {
        self.data.as_ref()?.vars(task?)
    }

    /// Whether the task provides predictions and targets for metrics; `false` while one of its own
    /// hooks is running.
    pub(crate) fn has_metric_inputs(&self, task: Option<&dyn Any>) -> bool {
        match (&self.data, task) {
            (Some(data), Some(task)) => data.has_metric_inputs(task),
            _ => false,
        }
    }

    /// Returns the prediction and the target of the current batch for metrics; `None` if the batch
    /// has no target.
    pub(crate) fn metric_inputs(&self, task: Option<&dyn Any>) -> Result<Option<(Tensor, Tensor)>> {
        match (&self.data, task) {
            (Some(data), Some(task)) => data.metric_inputs(task),
            _ => Err(task_is_lent()),
        }
    }

    /// Whether a batch of training is being processed.
    pub(crate) fn is_in_training_batch(&self, phase: Phase) -> bool {
        phase == Phase::Train && self.batch_len.is_some()
    }

    /// Counts a loss that was computed, and returns its number.
    pub(crate) fn count_loss(&mut self) -> u64 {
        self.loss_scale = 1.0;
        self.losses += 1;
        self.losses
    }

    /// Drops the data of the current step.
    pub(crate) fn clear(&mut self) {
        if let Some(data) = &mut self.data {
            data.clear();
        }
        self.loss = None;
        self.batch_len = None;
        current::end_step();
    }

    /// Describes the current batch for an error message; empty outside of a step.
    pub(crate) fn describe_batch(&self) -> String {
        if self.batch_len.is_none() {
            return String::new();
        }
        // This calls code of the batch's type while an error is reported: a panic must not escape.
        let describe = || self.data.as_ref().map_or_else(String::new, |data| data.describe_batch());
        let text = catch_unwind(AssertUnwindSafe(describe));
        text.unwrap_or_else(|payload| {
            discard_panic(payload);
            " on a batch that cannot be described".to_owned()
        })
    }
}

impl RunHooks {
    /// The task; `None` while one of its own hooks is running.
    pub(crate) fn task(&self) -> Option<&dyn Any> {
        self.instances[TASK].value.as_deref().map(|task| task as &dyn Any)
    }
}

impl Run {
    /// The ranks and the optimizers, which the gradients concern.
    pub(crate) fn gradients(&mut self) -> (&mut Ranks, &mut Optimizers) {
        (&mut self.ranks, &mut self.model.optimizers)
    }
}

/// Returns the error for a task that one of its own hooks borrows.
#[cold]
pub(crate) fn task_is_lent() -> Error {
    Error::usage(
        "the task cannot be used while one of its own hooks is running: move the hook to a separate type, or to a free function",
    )
}
