//! Type erasure: how the run stores the task and its batches without their types, and how the loop
//! recovers the types.

use std::any::{Any, type_name};

use tch::{Tensor, nn};

use super::task::{Mode, Task};
use crate::data::Batch;
use crate::distributed::current;
use crate::error::{Error, Result};
use crate::hook::instance::TASK;
use crate::libtorch::{LossWatch, Statistics};
use crate::lifecycle::at;
use crate::run::RunHooks;
use crate::run::context::missing;
use crate::run::dispatch::{OperationOutput, computing};
use crate::run::{AnyTask, Run, StepData, task_is_lent};

/// The batch and the prediction of the current step of a task.
pub(super) struct Erased<T: Task> {
    pub(super) batch: Option<T::Batch>,
    pub(super) pred: Option<T::Pred>,
}

impl<T: Task> Erased<T> {
    /// Creates empty storage for the batch and the prediction of a task.
    pub(super) fn boxed() -> Box<dyn AnyTask> {
        Box::new(Erased::<T> { batch: None, pred: None })
    }
}

impl<T: Task> AnyTask for Erased<T> {
    fn batch(&self) -> (&dyn Any, &'static str) {
        (&self.batch, type_name::<T::Batch>())
    }

    fn batch_mut(&mut self) -> (&mut dyn Any, &'static str) {
        (&mut self.batch, type_name::<T::Batch>())
    }

    fn pred(&self) -> (&dyn Any, &'static str) {
        (&self.pred, type_name::<T::Pred>())
    }

    fn pred_mut(&mut self) -> (&mut dyn Any, &'static str) {
        (&mut self.pred, type_name::<T::Pred>())
    }

    fn visit_batch(&self, visit: &mut dyn FnMut(&Tensor)) {
        if let Some(batch) = &self.batch {
            batch.tensors(visit);
        }
    }

    fn visit_pred(&self, visit: &mut dyn FnMut(&Tensor)) {
        if let Some(pred) = &self.pred {
            T::pred_tensors(pred, visit);
        }
    }

    fn clear(&mut self) {
        self.batch = None;
        self.pred = None;
    }

    fn describe_batch(&self) -> String {
        let mut text = String::new();
        if let Some(batch) = &self.batch {
            text.push_str(" on a batch of ");
            batch.describe(&mut text);
        }
        text
    }

    fn vars<'t>(&self, task: &'t dyn Any) -> Option<&'t nn::VarStore> {
        task.downcast_ref::<T>().map(Task::vars)
    }

    fn has_metric_inputs(&self, task: &dyn Any) -> bool {
        task.downcast_ref::<T>().is_some_and(|task| task.metric_inputs().is_some())
    }

    fn metric_inputs(&self, task: &dyn Any) -> Result<Option<(Tensor, Tensor)>> {
        let task = task.downcast_ref::<T>().ok_or_else(task_is_lent)?;
        let Some(inputs) = task.metric_inputs() else {
            return Err(Error::usage(
                "the task does not provide predictions and targets: implement `Task::metric_inputs`",
            ));
        };
        match (&self.batch, &self.pred) {
            (Some(batch), Some(pred)) => Ok(inputs(task, batch, pred)),
            (None, _) => Err(missing("batch")),
            (_, None) => Err(missing("prediction")),
        }
    }

    fn recompute_loss(&self) -> fn(&mut Run) -> Result<Tensor> {
        recompute_loss::<T>
    }
}

/// Returns the task of a run, or an error while one of the task's own hooks is running.
pub(super) fn task_of<T: Task>(hooks: &RunHooks) -> Result<&T> {
    hooks.task().and_then(|task| task.downcast_ref()).ok_or_else(task_is_lent)
}

/// Returns the task of a run. Panics while one of the task's own hooks is running.
pub(super) fn task<T: Task>(hooks: &RunHooks) -> &T {
    task_of(hooks).expect("no hook of the task is running")
}

/// Returns mutable access to the task of a run. Panics while one of the task's own hooks is
/// running.
pub(super) fn task_mut<T: Task>(hooks: &mut RunHooks) -> &mut T {
    let task = hooks.instances[TASK].value.as_mut().and_then(|value| value.downcast_mut());
    task.expect("no hook of the task is running")
}

/// Returns the number of optimizer steps that the task takes for a batch.
pub(super) fn steps_per_batch<T: Task>(hooks: &RunHooks) -> Result<u64> {
    match task_of::<T>(hooks)?.steps_per_batch() {
        0 => Err(Error::usage("`Task::steps_per_batch` returned 0: expected at least 1")),
        steps => Ok(steps),
    }
}

/// Returns the batch and the prediction of the current step.
pub(super) fn data<T: Task>(step: &StepData) -> &Erased<T> {
    typed(step.data.as_deref().expect(HERE))
}

/// Returns mutable access to the batch and the prediction of the current step.
pub(super) fn data_mut<T: Task>(step: &mut StepData) -> &mut Erased<T> {
    typed_mut(&mut **step.data.as_mut().expect(HERE))
}

const HERE: &str = "the loop does not run while the task has the batch";
const OF_TASK: &str = "the builder created the data for the task's types";

fn typed<T: Task>(data: &dyn AnyTask) -> &Erased<T> {
    let data: &dyn Any = data;
    data.downcast_ref().expect(OF_TASK)
}

fn typed_mut<T: Task>(data: &mut dyn AnyTask) -> &mut Erased<T> {
    let data: &mut dyn Any = data;
    data.downcast_mut().expect(OF_TASK)
}

/// Calls `compute` with the task and the data of the step: its batch and its prediction. Hooks at
/// the modules of the task observe the computation. The rows of a batch that do not count leave the
/// running statistics of batch normalization as they are.
#[inline]
pub(super) fn borrowed<T: Task, R>(
    run: &mut Run,
    compute: impl FnOnce(&mut T, &Erased<T>) -> Result<R>,
) -> Result<R> {
    let statistics = if run.ranks().is_borrowed { Statistics::Kept } else { Statistics::Updated };
    computing(run, statistics, |task, data| compute(task, typed(data.expect(HERE))))
}

pub(super) const PREDICTION: OperationOutput = OperationOutput { name: "prediction", setter: "set_pred" };
pub(super) const LOSS_OUTPUT: OperationOutput = OperationOutput { name: "loss", setter: "set_loss" };

/// Computes the prediction of the current batch.
pub(super) fn compute_pred<T: Task>(
    run: &mut Run,
    compute: impl FnOnce(&mut T, &T::Batch) -> Result<T::Pred>,
) -> Result<()> {
    current::begin_forward(run.ranks().is_borrowed);
    let pred = borrowed::<T, _>(run, |task, data| {
        compute(task, data.batch.as_ref().ok_or_else(|| missing("batch"))?)
    })?;
    current::check_layers()?;
    data_mut::<T>(run.step_mut()).pred = Some(pred);
    Ok(())
}

/// Computes the loss of the current prediction.
pub(super) fn compute_loss<T: Task>(
    run: &mut Run,
    compute: impl FnOnce(&mut T, &T::Pred, &T::Batch) -> Result<Option<Tensor>>,
) -> Result<()> {
    // The shapes of later batches differ only in their number of rows.
    let watch = (run.counters().batch_idx == 0).then(LossWatch::start).transpose()?;
    run.step_mut().loss = borrowed::<T, _>(run, |task, data| {
        let pred = data.pred.as_ref().ok_or_else(|| missing("prediction"))?;
        compute(task, pred, data.batch.as_ref().ok_or_else(|| missing("batch"))?)
    })?;
    if let Some(found) = watch.and_then(LossWatch::stop) {
        return Err(Error::usage(format!(
            "the loss is {found}, so each prediction is compared with every target: give both the same shape, for example with \
             `pred.squeeze_dim(-1)` or `target.unsqueeze(-1)`"
        )));
    }
    current::check_layers()
}

/// Computes the prediction and the loss of the current batch a second time, and returns this loss.
/// The hooks around `pred` and `loss` run again. The step keeps its first prediction and loss.
pub(super) fn recompute_loss<T: Task>(run: &mut Run) -> Result<Tensor> {
    let pred = data_mut::<T>(run.step_mut()).pred.take();
    let loss = run.step_mut().loss.take();
    let result = run
        .produce::<at::pred>(PREDICTION, |run| {
            compute_pred(run, |task: &mut T, batch| task.pred(batch, Mode::Train))
        })
        .and_then(|()| {
            run.produce::<at::loss>(LOSS_OUTPUT, |run| {
                compute_loss(run, |task: &mut T, pred, batch| task.loss(pred, batch).map(Some))
            })
        });
    data_mut::<T>(run.step_mut()).pred = pred;
    let again = std::mem::replace(&mut run.step_mut().loss, loss);
    result.map(|()| again.expect("`produce` returns an error without a loss"))
}
