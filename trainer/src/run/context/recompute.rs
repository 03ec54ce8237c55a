//! Recomputing the gradients of the current batch.

use tch::Tensor;

use super::Cx;
use crate::error::Result;
use crate::lifecycle::{GradientsBegun, GradientsKept, GradientsWithin};
use crate::moment::OnAllRanks;

impl<P> Cx<P> {
    /// Replaces the gradients with those of the current batch at the current weights, and returns
    /// the new loss. A method whose step uses gradients at other weights, such as
    /// [`Sam`](crate::hooks::Sam), changes the weights, calls this, and restores the weights.
    ///
    /// `pred` and `loss` are computed again with the hooks around them, but without the points
    /// before and after them. Nothing is logged, and [`pred`](Cx::pred) and [`loss`](Cx::loss) stay
    /// those of the step. Dropout draws new random numbers, and batch norm updates its running
    /// statistics again.
    ///
    /// # Errors
    ///
    /// Returns an error if several processes train together, if gradients are accumulated over
    /// several batches, if [`train_step`](crate::Task::train_step) has several losses or
    /// optimizers, if the hook that calls this runs inside a hook around `pred` or `loss`, or if
    /// the prediction, the loss or its gradients cannot be computed.
    pub fn recompute_grads(&mut self) -> Result<Tensor>
    where
        P: GradientsWithin + GradientsBegun + GradientsKept + OnAllRanks,
    {
        self.run_mut().recompute_grads()
    }
}
