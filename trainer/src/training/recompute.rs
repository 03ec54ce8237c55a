//! Recomputing the gradients of the current batch at other weights.

use tch::Tensor;

use super::erased::data_mut;
use super::step::{LOSS_OUTPUT, PREDICTION, compute_loss, compute_pred};
use super::task::{Mode, Task};
use crate::error::{Error, Result};
use crate::lifecycle::at;
use crate::run::{Run, task_is_lent};

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

impl Run {
    /// Implements [`Cx::recompute_grads`](crate::Cx::recompute_grads).
    pub(crate) fn recompute_grads(&mut self) -> Result<Tensor> {
        if self.model.optimizers.names().count() > 1 || self.step.losses - self.step.losses_before != 1 {
            return Err(Error::usage(
                "the gradients cannot be computed again, because the task's `train_step` has several losses or optimizers: use one loss \
                 and one optimizer, or remove the hook that computes them again",
            ));
        }
        if !self.ranks.world.is_solo() {
            return Err(Error::usage(
                "the gradients cannot be computed again when several processes train together: use one process",
            ));
        }
        if !self.model.optimizers.has_accumulated_only(self.step.weight) {
            return Err(Error::usage(
                "the gradients cannot be computed again, because they are a mean over several batches: remove `.accumulate(…)` \
                 and hooks that keep gradients for a later step",
            ));
        }
        let recompute = self.step.data.as_ref().ok_or_else(task_is_lent)?.recompute_loss();
        let result = self.returning(|run| recompute(run).and_then(|loss| run.replace_grads(loss)));
        self.dispatch.error_is_located |= result.is_err();
        result
    }

    /// Replaces the gradients with those of this loss.
    fn replace_grads(&mut self, loss: Tensor) -> Result<Tensor> {
        self.forget_module_gradients();
        self.model.optimizers.zero_current()?;
        let factor = self.step.loss_scale;
        let result = if factor == 1.0 {
            self.model.optimizers.backward(&loss)
        } else {
            self.model.optimizers.backward(&(&loss * factor))
        };
        self.forget_module_gradients();
        result.map(|()| loss)
    }
}
