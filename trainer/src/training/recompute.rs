//! Recomputing the gradients of the current batch at other weights.

use tch::Tensor;

use super::erased::data_mut;
use super::step::{LOSS_OUTPUT, PREDICTION, compute_loss, compute_pred};
use super::task::{Mode, Task};
use crate::error::Result;
use crate::lifecycle::at;
use crate::run::Run;

/// Computes the prediction and the loss of the current batch again, with the hooks around `pred`
/// and `loss`, and returns the loss. The prediction and the loss of the step stay as they are.
pub(super) fn recompute_loss<T: Task>(run: &mut Run) -> Result<Tensor> {
    let pred = data_mut::<T>(&mut run.step).pred.take();
    let loss = run.step.loss.take();
    let result = compute::<T>(run);
    data_mut::<T>(&mut run.step).pred = pred;
    let again = std::mem::replace(&mut run.step.loss, loss);
    result.map(|()| again.expect("`produce` returns an error without a loss"))
}

fn compute<T: Task>(run: &mut Run) -> Result<()> {
    run.produce::<at::pred>(PREDICTION, |run| {
        compute_pred(run, |task: &mut T, batch| task.pred(batch, Mode::Train))
    })?;
    run.produce::<at::loss>(LOSS_OUTPUT, |run| {
        compute_loss(run, |task: &mut T, pred, batch| task.loss(pred, batch).map(Some))
    })
}
