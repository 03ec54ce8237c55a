//! The weight of a batch: the number of elements over which its loss is averaged.

use std::sync::Arc;

use tch::{Device, Kind, Tensor};

use super::erased::{data, task_of};
use super::task::Task;
use crate::data::Batch;
use crate::distributed::current;
use crate::error::{Error, Result};
use crate::hook::call::Loop;
use crate::model::vars::Vars;
use crate::phase::Phase;
use crate::run::{Amount, Run};

/// Returns the weight and the number of samples of a batch on this rank. Both are 0 if the batch is
/// borrowed: its rows then belong to another rank.
pub(super) fn amount<T: Task>(run: &Run, batch: &T::Batch) -> Result<Amount> {
    if run.ranks().is_borrowed {
        return Ok(Amount::default());
    }
    let samples = batch.samples().unwrap_or(1) as f64;
    if run.phase() == Phase::Predict {
        return Ok(Amount { weight: samples, samples });
    }
    let task = task_of::<T>(run.hooks()).map_err(|error| run.locate(error))?;
    let weight = task.weight(batch);
    if weight.is_finite() && weight >= 0.0 {
        return Ok(Amount { weight, samples });
    }
    Err(run.locate(Error::usage(format!(
        "`Task::weight` returned {weight}: expected the number of elements over which the loss is averaged, finite and at least 0"
    ))))
}

/// Stores the weight and the number of samples of the current batch. `of_ranks` are those over all
/// ranks, if the ranks have agreed on them.
pub(super) fn weigh<T: Task>(run: &mut Run, of_ranks: Option<Amount>) -> Result<()> {
    run.step_mut().is_batch_changed = false;
    let Some(batch) = &data::<T>(run.step()).batch else { return Ok(()) };
    let samples = batch.samples().unwrap_or(1);
    run.step_mut().batch_len = Some(samples); // for errors of `Task::weight`
    let Some(batch) = &data::<T>(run.step()).batch else { return Ok(()) };
    let amount = amount::<T>(run, batch)?;
    let step = run.step_mut();
    step.weight = amount.weight;
    step.total = of_ranks.unwrap_or(amount);
    Ok(())
}

/// Weighs the batch again if a hook may have changed it. In training, sums its weight and its
/// number of samples over all ranks again.
pub(super) fn weigh_again<T: Task>(run: &mut Run) -> Result<()> {
    if !run.step().is_batch_changed {
        return Ok(());
    }
    weigh::<T>(run, None)?;
    if run.phase() == Phase::Train {
        let Amount { weight, samples } = run.step().total;
        let what = "the agreement on the weight of a changed batch";
        let ([], [weight, samples]) = run.world().combine([], [weight, samples], what)?;
        run.step_mut().total = Amount { weight, samples };
    }
    Ok(())
}

/// Returns the loss of a batch of weight 0, so that a loss exists for hooks that run at an
/// optimizer step after this batch. If the ranks train together, the gradients of this loss are 0,
/// but its backward pass takes part in the reduction over all ranks and in the collectives of
/// layers.
#[cold]
pub(super) fn zero_loss(vars: &Vars, device: Device, is_in_ranks: bool) -> Tensor {
    let mut loss = Tensor::zeros([0; 0], (Kind::Float, device));
    if is_in_ranks {
        for var in vars.parameters().filter(|var| var.tensor.requires_grad()) {
            loss += var.tensor.flatten(0, -1).narrow(0, 0, 0).sum(Kind::Float);
        }
        for output in current::outputs() {
            loss += output.flatten(0, -1).narrow(0, 0, 0).sum(Kind::Float);
        }
    }
    loss
}

/// Describes a pass whose batches all had weight 0.
#[cold]
pub(super) fn without_weight(phase: Phase, epoch: u64, loader: Option<&Arc<str>>) -> String {
    let what = match phase {
        Phase::Train => format!("training batch of epoch {epoch} had weight 0, so nothing was trained"),
        _ => {
            let pass = if phase == Phase::Test { "test" } else { "validation" };
            let loader = loader.map_or_else(String::new, |name| format!(" of `{name}`"));
            format!("batch of the {pass} pass{loader} had weight 0, so it has neither a loss nor metrics")
        }
    };
    format!("every {what}: check `Task::weight`, and whether every target is masked")
}
