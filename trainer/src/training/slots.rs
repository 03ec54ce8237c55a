//! Typed access to the task and to the batch and the prediction of the current step, which the run
//! stores type-erased.

use std::any::Any;

use tch::{Tensor, nn};

use super::task::Task;
use crate::checkpoint::Slot;
use crate::context::missing;
use crate::dispatch::modules::observed;
use crate::error::{Error, Result};
use crate::hook::instance::{Instance, TASK};
use crate::run::Run;

/// Returns mutable access to the task of a run. Panics while one of the task's own hooks is
/// running.
pub(super) fn task_mut<T: Task>(run: &mut Run) -> &mut T {
    task_in(&mut run.hooks.instances).expect("no hook of the task is running")
}

/// Returns the task of a run. Panics while one of the task's own hooks is running.
pub(super) fn task<T: Task>(run: &Run) -> &T {
    let task = run.hooks.instances[TASK].value.as_ref().and_then(|value| value.downcast_ref());
    task.expect("no hook of the task is running")
}

pub(super) fn task_in<T: Task>(instances: &mut [Instance]) -> Result<&mut T> {
    let task = instances[TASK].value.as_mut().and_then(|value| value.downcast_mut());
    task.ok_or_else(task_is_lent)
}

#[cold]
fn task_is_lent() -> Error {
    Error::usage(
        "the task cannot be used while one of its own hooks is running: move the hook to a separate type, or to a free function",
    )
}

/// Returns the `VarStore` of the task; `None` while one of the task's own hooks is running.
pub(super) fn store<T: Task>(run: &Run) -> Option<&nn::VarStore> {
    run.hooks.instances[TASK].value.as_ref()?.downcast_ref::<T>().map(Task::vars)
}

/// Whether the task provides the inputs of metrics: `Task::metric_inputs` returns a function.
/// `false` while one of the task's own hooks is running.
pub(super) fn has_metric_inputs<T: Task>(run: &Run) -> bool {
    let task = run.hooks.instances[TASK].value.as_ref().and_then(|value| value.downcast_ref::<T>());
    task.is_some_and(|task| task.metric_inputs().is_some())
}

/// Returns the prediction and the target of the current batch for metrics; `None` if the batch has
/// no target.
pub(super) fn metric_inputs<T: Task>(run: &Run) -> Result<Option<(Tensor, Tensor)>> {
    let task = run.hooks.instances[TASK].value.as_ref().and_then(|value| value.downcast_ref::<T>());
    let Some(inputs) = task.ok_or_else(task_is_lent)?.metric_inputs() else {
        return Err(Error::usage(
            "the task does not provide predictions and targets: implement `Task::metric_inputs`",
        ));
    };
    let batch: &Option<T::Batch> = run.step.batch.downcast_ref().expect("the slot is of the task's type");
    let pred: &Option<T::Pred> = run.step.pred.downcast_ref().expect("the slot is of the task's type");
    match (batch, pred) {
        (Some(batch), Some(pred)) => Ok(inputs(batch, pred)),
        (None, _) => Err(missing("batch")),
        (_, None) => Err(missing("prediction")),
    }
}

/// Returns the content of a slot, with the task's own type.
pub(super) fn typed<V: 'static>(slot: &mut Box<dyn Any + Send>) -> &mut Option<V> {
    slot.downcast_mut().expect("the builder created the slot for the task's types")
}

/// Drops the batch and the prediction.
pub(super) fn empty_slots<T: Task>(run: &mut Run) {
    *typed::<T::Batch>(&mut run.step.batch) = None;
    *typed::<T::Pred>(&mut run.step.pred) = None;
}

/// Calls `compute` with the task, and with the prediction and the batch of the step. Hooks at
/// modules of the task observe the computation.
#[inline]
pub(super) fn borrowed<T: Task, R>(
    run: &mut Run,
    compute: impl FnOnce(&mut T, &Option<T::Pred>, &Option<T::Batch>) -> Result<R>,
) -> Result<R> {
    if run.hooks.table.is_watching(run.place.phase) {
        return lent::<T, R>(run, compute);
    }
    let Run { hooks, step, .. } = run;
    compute(task_in::<T>(&mut hooks.instances)?, typed(&mut step.pred), typed(&mut step.batch))
}

/// The task, the batch and the prediction, moved out of the run while hooks at modules need the
/// run. They are moved back on drop.
struct Loan<'a> {
    run: &'a mut Run,
    task: Option<Slot>,
    batch: Slot,
    pred: Slot,
}

impl Drop for Loan<'_> {
    fn drop(&mut self) {
        let Loan { run, task, batch, pred } = self;
        run.hooks.instances[TASK].value = task.take();
        std::mem::swap(&mut run.step.batch, batch);
        std::mem::swap(&mut run.step.pred, pred);
    }
}

/// Does the same as [`borrowed`] while hooks observe the modules of the task.
#[inline(never)]
fn lent<T: Task, R>(
    run: &mut Run,
    compute: impl FnOnce(&mut T, &Option<T::Pred>, &Option<T::Batch>) -> Result<R>,
) -> Result<R> {
    // A box of `()` takes no memory.
    let take = |slot: &mut Slot| std::mem::replace(slot, Box::new(()));
    let (batch, pred) = (take(&mut run.step.batch), take(&mut run.step.pred));
    let task = run.hooks.instances[TASK].value.take();
    let mut loan = Loan { run, task, batch, pred };
    let Loan { run, task, batch, pred } = &mut loan;
    let task = task.as_mut().and_then(|value| value.downcast_mut()).ok_or_else(task_is_lent)?;
    let (pred, batch) = (typed(pred), typed(batch));
    observed(run, || compute(task, pred, batch))
}
