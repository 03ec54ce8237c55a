//! Recomputing the gradients of the current batch.

use tch::Tensor;

use super::Cx;
use crate::error::{Error, Result};
use crate::lifecycle::{GradientsBegun, GradientsKept, GradientsWithin, HasGrads, available};
use crate::moment::OnAllRanks;
use crate::optim::PassPlan;
use crate::run::{Run, task_is_lent};

/// # Computing the gradients again
impl<P> Cx<P> {
    /// Replaces the gradients with those of the current batch at the current weights, and returns
    /// the new loss. A training method whose step uses gradients at different weights, such as
    /// [`Sam`](crate::hooks::Sam), changes the weights, calls this, and then restores the weights.
    ///
    #[doc = available!(HasGrads)]
    #[doc = available!(OnAllRanks)]
    ///
    /// `pred` and `loss` are computed again with the hooks around them, but without the points
    /// before and after them. Nothing is logged, and [`pred`](Cx::pred) and [`loss`](Cx::loss) stay
    /// those of the step. Dropout draws new random numbers, and batch norm updates its running
    /// statistics again.
    ///
    /// # Errors
    ///
    /// Returns an error if
    ///
    /// - several processes train together;
    /// - gradients are accumulated over several batches;
    /// - [`train_step`](crate::Task::train_step) has several losses or optimizers;
    /// - the hook that calls this runs inside a hook around `pred` or `loss`;
    /// - the prediction, the loss or its gradients cannot be computed.
    pub fn recompute_grads(&mut self) -> Result<Tensor>
    where
        P: GradientsWithin + GradientsBegun + GradientsKept + HasGrads + OnAllRanks,
    {
        recompute_grads(self.run_mut())
    }
}

fn recompute_grads(run: &mut Run) -> Result<Tensor> {
    if run.model.optimizers.names().count() > 1 || run.step.losses - run.step.losses_before != 1 {
        return Err(Error::usage(
            "the gradients cannot be computed again, because the task's `train_step` has several losses or optimizers: use one loss \
             and one optimizer, or remove the hook that computes them again",
        ));
    }
    if !run.ranks.world.is_solo() {
        return Err(Error::usage(
            "the gradients cannot be computed again when several processes train together: use one process",
        ));
    }
    if !run.model.optimizers.has_accumulated_only(run.step.weight) {
        return Err(Error::usage(
            "the gradients cannot be computed again, because they are a mean over several batches: remove `.accumulate(…)` \
             and hooks that keep gradients for a later step",
        ));
    }
    let recompute = run.step.data.as_ref().ok_or_else(task_is_lent)?.recompute_loss();
    run.returning(|run| {
        let loss = recompute(run)?;
        let optimizers = &mut run.model.optimizers;
        optimizers.zero_current()?;
        let factor = run.step.loss_scale;
        // A single process divides no gradients.
        let pass = PassPlan { is_last: true, has_rows: true };
        let scaled = if factor == 1.0 { loss.shallow_clone() } else { &loss * factor };
        let result = optimizers.backward(&scaled, pass);
        run.modules.forget_gradients(); // no hook observes this pass
        result.map(|()| loss)
    })
}
