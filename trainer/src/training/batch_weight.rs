//! The weight of a batch: the number of elements over which its loss is averaged.

use tch::{Kind, Tensor};

use super::decide;
use super::erased::{data, task_in};
use super::task::Task;
use crate::data::Batch;
use crate::distributed::current;
use crate::error::{Error, Result};
use crate::phase::Phase;
use crate::run::Run;

/// Stores the weight of the current batch, which the task computes. The weight is 0 if the batch is
/// borrowed: its row then belongs to another rank.
pub(super) fn weigh_current<T: Task>(run: &mut Run) -> Result<()> {
    run.step.is_batch_changed = false;
    if run.ranks.is_borrowed {
        run.step.weight = 0.0; // the row belongs to another rank
        run.step.total = run.ranks.next.take().unwrap_or_default();
        return Ok(());
    }
    let Some(batch) = &data::<T>(&run.step).batch else { return Ok(()) };
    let samples = batch.samples().unwrap_or(1);
    let weight = task_in::<T>(&mut run.hooks.instances)?.weight(batch);
    run.step.batch_len = Some(samples);
    run.step.weight = checked_weight(run, weight)?;
    run.step.total = run.ranks.next.take().unwrap_or_else(|| run.step.own_amount());
    Ok(())
}

/// Returns the weight, or an error if it is negative or not finite.
fn checked_weight(run: &Run, weight: f64) -> Result<f64> {
    if weight.is_finite() && weight >= 0.0 {
        return Ok(weight);
    }
    Err(run.locate(Error::usage(format!(
        "`Task::weight` returned {weight}: expected the number of elements over which the loss is averaged, \
         finite and at least 0"
    ))))
}

/// Returns the weight of a batch that is about to be processed.
pub(super) fn weigh<T: Task>(run: &mut Run, batch: &T::Batch) -> Result<f64> {
    let weight = task_in::<T>(&mut run.hooks.instances)?.weight(batch);
    checked_weight(run, weight)
}

/// Computes the weight of the batch again if a hook may have changed the batch.
pub(super) fn weigh_again<T: Task>(run: &mut Run) -> Result<()> {
    if !run.step.is_batch_changed || run.place.phase == Phase::Predict {
        return Ok(());
    }
    weigh_current::<T>(run)?;
    decide::agree_on_weight(run)
}

/// Whether the batch has a weight of 0, so there is no loss to compute.
#[inline]
pub(super) fn is_weightless<T: Task>(run: &mut Run) -> Result<bool> {
    if run.step.weight == 0.0 {
        weigh_again::<T>(run)?;
    }
    Ok(run.step.weight == 0.0)
}

/// Sets the loss of a batch of weight 0 to 0, so that a loss exists for hooks that run at an
/// optimizer step after this batch. Returns the sequence number of the loss.
#[cold]
pub(super) fn no_loss(run: &mut Run) -> u64 {
    let mut loss = Tensor::zeros([0; 0], (Kind::Float, run.model.device));
    if run.place.phase == Phase::Train && !run.ranks.world.is_solo() {
        // The gradients of this loss are 0, but its backward pass takes part in the reduction over
        // all ranks and in the collectives of layers.
        for var in run.model.vars.parameters().filter(|var| var.tensor.requires_grad()) {
            loss += var.tensor.flatten(0, -1).narrow(0, 0, 0).sum(Kind::Float);
        }
        for output in current::outputs() {
            loss += output.flatten(0, -1).narrow(0, 0, 0).sum(Kind::Float);
        }
    }
    run.step.loss = Some(loss);
    run.step.loss_scale = 1.0;
    run.step.losses += 1;
    run.step.losses
}
