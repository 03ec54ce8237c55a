//! Methods of [`Cx`] for the gradients.

use tch::Tensor;

use super::Cx;
use crate::error::{Error, Result};
use crate::hook::call::Loop;
use crate::lifecycle::{
    CanRunBackward, GradientsBegun, GradientsKept, GradientsWithin, HasGrads, HasModuleGrads, available,
};
use crate::model::vars::Grads;
use crate::moment::OnAllRanks;
use crate::optim::DividedGradients;
use crate::run::Run;

/// # The gradients
impl<P> Cx<P> {
    /// Runs a backward pass from `loss` and adds its gradients to the gradients of the parameters
    /// that the current optimizer updates. Use it to [replace](crate::Next::replace) the operation
    /// `backward`, or for an additional backward pass.
    ///
    #[doc = available!(CanRunBackward)]
    #[doc = available!(OnAllRanks)]
    ///
    /// The weight of the batch is then counted in the accumulation window, but only once, however
    /// many backward passes run. Outside of a replacement, gradients computed with
    /// `Tensor::backward` are not counted, because the trainer does not see that call.
    ///
    /// # Errors
    ///
    /// Returns an error if the backward pass fails, for example because `loss` requires no gradient
    /// or has more than one element, or if a hook fails while it runs. The gradients accumulated so
    /// far are then dropped. Also returns the error of a hook at `after_module_backward`.
    pub fn backward(&mut self, loss: &Tensor) -> Result<()>
    where
        P: CanRunBackward + OnAllRanks,
    {
        let run = &mut self.run;
        run.check_complaint()?;
        run.ranks.note_own_gradients(&run.model.optimizers);
        let weight = run.ranks.gradient_weight(&run.step);
        run.model.optimizers.reset_if_dropped();
        if let Err(error) = run.returning(|run| run.backward(loss)) {
            let _ = run.model.optimizers.drop_grads();
            return Err(error);
        }
        run.model.optimizers.accumulate(weight)?;
        run.returning(Run::fire_module_gradients)
    }

    /// The gradients of all parameters that have one, with their names. The tensors share their
    /// storage with the parameters' gradients, so an in-place operation such as `clamp_` changes
    /// them. If the gradients are [divided among the ranks](Cx::grads_are_divided), these are the
    /// gradients of this rank's share of the parameters.
    ///
    #[doc = available!(HasGrads)]
    ///
    /// At `after_backward`, the gradients are those of all batches of the [accumulation
    /// window](crate::TrainerBuilder::accumulate) so far, as a running sum.
    /// [`OnGrad`](crate::OnGrad) on a parameter observes the gradient of each batch alone.
    ///
    /// ```standalone_crate
    /// use trainer::prelude::*;
    ///
    /// #[hook(every = 100)]
    /// fn after_backward(cx: &Cx<AfterBackward>) {
    ///     for (name, grad) in cx.grads() {
    ///         cx.log(name, grad.norm());
    ///     }
    /// }
    /// # fn main() {}
    /// ```
    pub fn grads(&self) -> Grads
    where
        P: GradientsWithin + GradientsBegun + GradientsKept + HasGrads,
    {
        Grads::new(&self.run.model.vars)
    }

    /// The gradient of one parameter.
    ///
    #[doc = available!(HasGrads)]
    ///
    /// # Errors
    ///
    /// Returns an error if no variable has this name, or if the variable has no gradient, for
    /// example because the gradients are [divided among the ranks](Cx::grads_are_divided) and
    /// another rank has it.
    pub fn grad(&self, name: &str) -> Result<Tensor>
    where
        P: GradientsWithin + GradientsBegun + GradientsKept + HasGrads,
    {
        let grad = self.run.model.vars.get(name)?.grad();
        if grad.defined() {
            return Ok(grad);
        }
        if let Some(owner) = self.run.model.optimizers.owner_elsewhere(name) {
            return Err(Error::usage(format!(
                "the gradient of `{name}` is on rank {owner} only, because the optimizer divides the gradients among the ranks: read \
                 this rank's share with `cx.grads()`, or remove `.gradients(true)` from `Sharded`"
            )));
        }
        Err(Error::usage(format!(
            "the variable `{name}` has no gradient, because the loss does not depend on it or it is frozen: choose another \
             variable, or read the gradients that exist with `cx.grads()`"
        )))
    }

    /// The gradients of the parameters of the module, with their names: those that the
    /// [`grads`](Cx::grads) with the name of the module before theirs will be at `after_backward`.
    /// Parameters without a gradient are left out.
    ///
    #[doc = available!(HasModuleGrads)]
    ///
    /// If several processes train together, they are those of this process alone.
    ///
    /// # Errors
    ///
    /// Returns an error if [`DataParallel`](crate::hooks::DataParallel) averages the gradients over
    /// the processes while this backward pass runs, as it does in the last pass of an accumulation
    /// window: some of them would be averages then, and others not.
    pub fn module_grads(&self) -> Result<Grads>
    where
        P: HasModuleGrads,
    {
        let run = &self.run;
        if run.modules.is_averaging(&run.ranks.world) {
            return Err(Error::usage(format!(
                "the gradients of `{}` cannot be read while the backward pass runs, because they are being averaged over the \
                 processes: read them at `after_backward`",
                run.modules.name()
            )));
        }
        Ok(Grads::of_module(&run.model.vars, run.modules.name()))
    }

    /// Whether the gradients of the [current part](Cx::part) are divided among the ranks: this rank
    /// then has those of its share of the parameters, averaged over all ranks, and no others. This
    /// is the case after a backward pass if the optimizer is [`Sharded`](crate::optim::Sharded)
    /// with [`gradients`](crate::optim::Sharded::gradients), in several processes.
    ///
    /// A sum over all gradients is then a sum over the ranks:
    ///
    /// ```standalone_crate
    /// use trainer::distributed::Op;
    /// use trainer::prelude::*;
    ///
    /// /// Logs the largest element of all gradients.
    /// #[hook]
    /// fn before_opt_step(cx: &mut Cx<BeforeOptStep>) -> Result<()> {
    ///     let own = cx.grads().map(|(_, grad)| grad.abs().max().double_value(&[]));
    ///     let largest = Tensor::from(own.fold(0.0, f64::max));
    ///     if cx.grads_are_divided() {
    ///         cx.world().all_reduce("largest gradient", &largest, Op::Max)?;
    ///     }
    ///     cx.log("largest_gradient", largest);
    ///     Ok(())
    /// }
    /// # fn main() {}
    /// ```
    #[must_use]
    pub fn grads_are_divided(&self) -> bool {
        self.as_run().model.optimizers.divided().is_some_and(DividedGradients::are_divided)
    }

    /// Whether this rank has the gradient of this parameter, if the parameter has one: `false` if
    /// the gradients are [divided among the ranks](Cx::grads_are_divided) and the parameter belongs
    /// to another rank.
    #[must_use]
    pub fn has_grad_of(&self, name: &str) -> bool {
        self.as_run().model.optimizers.owner_elsewhere(name).is_none()
    }

    /// Multiplies the gradients of the current optimizer's parameters by `factor`, and returns
    /// whether all of them were finite, on all ranks if they are
    /// [divided](Cx::grads_are_divided). Synchronizes with the device.
    ///
    #[doc = available!(HasGrads)]
    #[doc = available!(OnAllRanks)]
    ///
    /// A gradient scaler calls this method with the inverse of its loss scale, and
    /// [drops](Cx::drop_grads) gradients that are not finite.
    ///
    /// # Errors
    ///
    /// Returns an error if libtorch fails, for example on a sparse gradient.
    pub fn unscale_grads(&mut self, factor: f64) -> Result<bool>
    where
        P: GradientsWithin + GradientsBegun + GradientsKept + HasGrads + OnAllRanks,
    {
        self.run.model.optimizers.unscale_grads(factor)
    }

    /// Scales the gradients of the current optimizer's parameters so that their total L2 norm,
    /// taken over all of them as one vector, those of other ranks included, is at most `max_norm`,
    /// as `torch.nn.utils.clip_grad_norm_` does (Pascanu et al., *On the difficulty of training
    /// recurrent neural networks*, 2013).
    ///
    #[doc = available!(HasGrads)]
    #[doc = available!(OnAllRanks)]
    ///
    /// Returns the norm before clipping as a one-element tensor, without synchronizing with the
    /// device. Use this in a hook that decides when or how much to clip, and otherwise
    /// [`TrainerBuilder::clip_grad_norm`](crate::TrainerBuilder::clip_grad_norm).
    ///
    /// # Errors
    ///
    /// Returns an error if libtorch fails, for example on a sparse gradient.
    #[doc(alias = "clip_grad_norm_")]
    pub fn clip_grad_norm(&mut self, max_norm: f64) -> Result<Tensor>
    where
        P: GradientsWithin + GradientsBegun + GradientsKept + HasGrads + OnAllRanks,
    {
        self.run.model.optimizers.clip_grad_norm(max_norm)
    }

    /// Clamps every element of the gradients of the current optimizer's parameters to
    /// `-max_value..=max_value`. Use this in a hook that decides when or how much to clip, and
    /// otherwise [`TrainerBuilder::clip_grad_value`](crate::TrainerBuilder::clip_grad_value).
    ///
    #[doc = available!(HasGrads)]
    #[doc = available!(OnAllRanks)]
    ///
    /// # Errors
    ///
    /// Returns an error if libtorch fails.
    #[doc(alias = "clip_grad_value_")]
    pub fn clip_grad_value(&mut self, max_value: f64) -> Result<()>
    where
        P: GradientsWithin + GradientsBegun + GradientsKept + HasGrads + OnAllRanks,
    {
        self.run.model.optimizers.clip_grad_value(max_value)
    }

    /// Drops the gradients of the current optimizer's parameters, so that their batches no longer
    /// count in the mean over the accumulation window. In contrast, gradients that are zeroed in
    /// place are kept, and their batches count.
    ///
    #[doc = available!(HasGrads)]
    #[doc = available!(OnAllRanks)]
    ///
    /// # Errors
    ///
    /// Returns an error if libtorch fails.
    pub fn drop_grads(&mut self) -> Result<()>
    where
        P: GradientsWithin + GradientsBegun + GradientsKept + HasGrads + OnAllRanks,
    {
        self.run.model.optimizers.drop_grads()
    }
}
