//! Calls of the task: everything that its model computes for the run passes through [`computing`].

use super::module_hooks::observed;
use crate::checkpoint::Slot;
use crate::error::{Error, Result};
use crate::hook::instance::TASK;
use crate::libtorch::{SingleValue, Statistics, StatisticsGuard, identity};
use crate::model::vars::Vars;
use crate::run::{AnyTask, Run, task_is_lent};

/// Calls `compute` with the task and the data of the step. Hooks at the modules of the task observe
/// the computation in the current phase. The running statistics of batch normalization change as
/// `statistics` says.
///
/// # Errors
///
/// Returns the error of `compute` or of a hook at a module, or an error if a batch normalization in
/// training mode has one value per channel.
#[inline]
pub(crate) fn computing<T: 'static, R>(
    run: &mut Run,
    statistics: Statistics,
    compute: impl FnOnce(&mut T, Option<&dyn AnyTask>) -> Result<R>,
) -> Result<R> {
    let guard = StatisticsGuard::begin(statistics);
    let result = if run.hooks.table.is_watching(run.at.place.phase) {
        lent::<T, R>(run, compute)
    } else {
        let Run { hooks, step, .. } = &mut *run;
        let task = hooks.instances[TASK].value.as_mut().and_then(|value| value.downcast_mut());
        task.ok_or_else(task_is_lent).and_then(|task| compute(task, step.data.as_deref()))
    };
    match guard.end() {
        None => result,
        Some(single) => Err(of_single_value(&run.model.vars, run.world().is_solo(), &single)),
    }
}

/// The task and the data of the step, moved out of the run while hooks at modules need the run.
/// They are moved back on drop.
struct Loan<'a> {
    run: &'a mut Run,
    task: Option<Slot>,
    data: Option<Box<dyn AnyTask>>,
}

impl Drop for Loan<'_> {
    fn drop(&mut self) {
        self.run.hooks.instances[TASK].value = self.task.take();
        self.run.step.data = self.data.take();
    }
}

/// Does the work of [`computing`] if hooks observe the modules of the task.
#[inline(never)]
fn lent<T: 'static, R>(
    run: &mut Run,
    compute: impl FnOnce(&mut T, Option<&dyn AnyTask>) -> Result<R>,
) -> Result<R> {
    let task = run.hooks.instances[TASK].value.take();
    let data = run.step.data.take();
    let mut loan = Loan { run, task, data };
    let Loan { run, task, data } = &mut loan;
    let task = task.as_mut().and_then(|value| value.downcast_mut()).ok_or_else(task_is_lent)?;
    let data = data.as_deref();
    observed(run, || compute(task, data))
}

/// Returns the error for a batch normalization that has one value per channel.
#[cold]
fn of_single_value(vars: &Vars, is_solo: bool, SingleValue { running_mean, shape }: &SingleValue) -> Error {
    let own = vars.iter().find(|var| identity(&var.tensor) == *running_mean);
    let module = own.and_then(|var| var.name.strip_suffix(".running_mean"));
    let what = module.map_or_else(
        || "a batch normalization".to_owned(),
        |module| format!("the batch normalization `{module}`"),
    );
    let synchronized =
        if is_solo { "" } else { ", or use `sync_batch_norm`, which counts the rows of all ranks" };
    Error::usage(format!(
        "{what} has one value per channel in training mode, because its input has the shape {shape:?}: the variance of one value is \
         undefined, and the running variance would become NaN; use larger batches, or leave out an incomplete last batch with \
         `.drop_last(true)`{synchronized}"
    ))
}
