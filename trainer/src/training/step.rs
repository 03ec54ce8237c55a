//! One batch: the operations of a step.

use std::any::Any;

use super::entry::locate;
use crate::context::no_optimizer;
use crate::data::Batch;
use crate::error::{Error, Result};
use crate::lifecycle::at;
use crate::metrics::LOSS;
use crate::phase::Phase;
use crate::run::{Instance, Run, TASK};
use crate::task::{Mode, Task, TrainStep};

/// One batch, from the loader to the end of its use. What it made is dropped at the end.
pub(super) fn step<T: Task>(run: &mut Run, batch: T::Batch) -> Result<()> {
    let samples = batch.samples().unwrap_or(1);
    run.batch_len = Some(samples);
    run.loss_scale = 1.0;
    *typed(&mut run.batch) = Some(batch);
    run.ordinal = if run.phase == Phase::Train { run.step.global_step } else { run.step.batch_idx } + 1;

    run.fire::<at::before_step>()?;
    if std::mem::take(&mut run.requests.skip_step) {
        run.step.batch_idx += 1;
        run.clear_step();
        return Ok(());
    }
    run.inside::<at::step>(|run| {
        run.operate::<at::transfer>(|run| {
            let device = run.device;
            if let Some(batch) = typed::<T::Batch>(&mut run.batch) {
                batch.to_device(device);
            }
            Ok(())
        })?;
        if run.phase == Phase::Train {
            T::train_step(TrainStep::of(run)).map(drop).map_err(|error| locate(run, error))
        } else {
            pred::<T>(run, Mode::Eval)?;
            loss::<T>(run)
        }
    })?;

    run.step.batch_idx += 1;
    if run.phase == Phase::Train {
        run.step.global_step += 1;
        run.step.samples_seen += samples;
    }
    run.fire::<at::after_step>()?;
    run.clear_step();
    Ok(())
}

impl Run {
    /// Drops what belongs to one batch alone.
    pub(crate) fn clear_step(&mut self) {
        (self.empty_slots)(self);
        self.loss = None;
        self.batch_len = None;
    }

    pub(crate) fn describe_batch(&self) -> String {
        if self.batch_len.is_none() { String::new() } else { (self.batch_text)(&self.batch) }
    }
}

/// See [`Run::empty_slots`].
pub(crate) fn empty_slots<T: Task>(run: &mut Run) {
    *typed::<T::Batch>(&mut run.batch) = None;
    *typed::<T::Pred>(&mut run.pred) = None;
}

/// The operation `pred`.
pub(crate) fn pred<T: Task>(run: &mut Run, mode: Mode) -> Result<()> {
    run.operate::<at::pred>(|run| {
        let task = task_in::<T>(&mut run.hooks);
        let made = match typed::<T::Batch>(&mut run.batch) {
            Some(batch) => task.pred(batch, mode),
            None => Err(Error::usage("there is no batch")),
        };
        *typed(&mut run.pred) = Some(made.map_err(|error| locate(run, error))?);
        Ok(())
    })
}

/// The operation `loss`. Its mean over the epoch is the metric `loss`.
pub(crate) fn loss<T: Task>(run: &mut Run) -> Result<()> {
    run.operate::<at::loss>(|run| {
        let task = task_in::<T>(&mut run.hooks);
        let made = match (typed::<T::Pred>(&mut run.pred), typed::<T::Batch>(&mut run.batch)) {
            (Some(pred), Some(batch)) => task.loss(pred, batch),
            _ => Err(Error::usage("there is no prediction")),
        };
        let loss = made.map_err(|error| locate(run, error))?;
        let weight = run.batch_len.unwrap_or(1) as f64;
        run.log.add(run.phase, LOSS, (&loss).into(), weight).map_err(|error| locate(run, error))?;
        run.loss = Some(loss);
        Ok(())
    })
}

/// The operation `backward`.
pub(crate) fn backward(run: &mut Run) -> Result<()> {
    run.operate::<at::backward>(|run| {
        let loss = run.loss.as_ref().expect("`Scored` was made by `loss`, in this step");
        if !loss.requires_grad() {
            return Err(locate(
                run,
                Error::usage(
                    "the loss carries no gradient: is every parameter frozen, or the loss detached?",
                ),
            ));
        }
        let result =
            if run.loss_scale == 1.0 { loss.f_backward() } else { (loss * run.loss_scale).f_backward() };
        result.map_err(|error| locate(run, error.into()))?;
        if run.step.global_step == 0 && !run.vars.parameters().any(|var| var.tensor.grad().defined()) {
            return Err(locate(
                run,
                Error::usage(
                    "no parameter of the task's `VarStore` took part in the loss: was the network built on another one?",
                ),
            ));
        }
        Ok(())
    })
}

/// The operation `opt_step`.
pub(crate) fn opt_step(run: &mut Run) -> Result<()> {
    run.operate::<at::opt_step>(|run| {
        let optimizer = run.optimizer.as_mut().ok_or_else(no_optimizer)?;
        optimizer.step().map_err(|error| locate(run, error))?;
        run.step.optimizer_step += 1;
        Ok(())
    })
}

/// The operation `zero_grad`.
pub(crate) fn zero_grad(run: &mut Run) -> Result<()> {
    run.operate::<at::zero_grad>(|run| run.optimizer.as_mut().ok_or_else(no_optimizer)?.zero_grad())
}

/// The task of a run, to be changed.
pub(crate) fn task_mut<T: Task>(run: &mut Run) -> &mut T {
    task_in(&mut run.hooks)
}

/// The task of a run.
pub(crate) fn task<T: Task>(run: &Run) -> &T {
    let task = run.hooks[TASK].value.as_ref().and_then(|value| value.downcast_ref());
    task.expect("the builder put the task there")
}

fn task_in<T: Task>(instances: &mut [Instance]) -> &mut T {
    let task = instances[TASK].value.as_mut().and_then(|value| value.downcast_mut());
    task.expect("the builder put the task there")
}

/// What lies in a slot, as the task's own type.
fn typed<V: 'static>(slot: &mut Box<dyn Any + Send>) -> &mut Option<V> {
    slot.downcast_mut().expect("the builder made it of the task's own types")
}
