//! Methods of [`Cx`] for hooks at modules.

use tch::Tensor;

use super::Cx;
use crate::error::{Error, Result};
use crate::lifecycle::{
    CanCheckpointActivations, CanSetInput, CanSetOutput, CanSetOutputGrad, HasInput, HasInputGrad, HasModule,
    HasOutput, HasOutputGrad, InputBegun, InputKept, InputWithin, ModuleBegun, ModuleKept, ModuleWithin,
    available,
};
use crate::modules::Layer;
use crate::moment::OnAllRanks;

/// # At a module
impl<P> Cx<P> {
    /// The name of the module.
    ///
    #[doc = available!(HasModule)]
    #[must_use]
    pub fn module(&self) -> &str
    where
        P: ModuleWithin + ModuleBegun + ModuleKept + HasModule,
    {
        self.as_run().modules.name()
    }

    /// The kind of the module and its number of parameters, if it is one of tch's own layers.
    ///
    #[doc = available!(HasModule)]
    #[must_use]
    pub fn layer(&self) -> Option<Layer>
    where
        P: ModuleWithin + ModuleBegun + ModuleKept + HasModule,
    {
        self.as_run().modules.layer()
    }

    /// The input of the module.
    ///
    #[doc = available!(HasInput)]
    pub fn input(&self) -> &Tensor
    where
        P: InputWithin + InputBegun + InputKept + HasInput,
    {
        self.as_run().modules.call().input()
    }

    /// The output of the module. It is part of the autograd graph, so call `detach` before keeping
    /// it beyond the hook.
    ///
    #[doc = available!(HasOutput)]
    pub fn output(&self) -> &Tensor
    where
        P: HasOutput,
    {
        self.as_run().modules.call().output.as_ref().expect("`after_module_forward` fires with an output")
    }

    /// The gradient of the loss with respect to the output of the module, with the shape of the
    /// output.
    ///
    #[doc = available!(HasOutputGrad)]
    ///
    /// Like the gradients of parameters at `after_backward`, it is scaled by the factors passed to
    /// [`scale_loss`](Cx::scale_loss) and by the weight of the batch in its accumulation window.
    /// Unlike those, it belongs to a single backward pass and is not accumulated.
    pub fn output_grad(&self) -> &Tensor
    where
        P: HasOutputGrad,
    {
        let grad = self.as_run().modules.call().output_grad.as_ref();
        grad.expect("the moment fires with a gradient")
    }

    /// The gradient of the loss with respect to the input of the module, counting only what passes
    /// through this call. If the input is also used elsewhere, for example by a residual
    /// connection, the gradient from there is not included. Scaled like
    /// [`output_grad`](Cx::output_grad).
    ///
    #[doc = available!(HasInputGrad)]
    ///
    /// `None` if the input does not require a gradient, as for the first layer; if the output does
    /// not depend on the input; or if a hook replaced the module.
    pub fn input_grad(&self) -> Option<&Tensor>
    where
        P: HasInputGrad,
    {
        self.as_run().modules.call().input_grad.as_ref()
    }

    /// Replaces the gradient of the output of the module, with which the backward pass then
    /// continues, as a hook of PyTorch's `register_full_backward_pre_hook` does by returning a
    /// tensor.
    ///
    #[doc = available!(CanSetOutputGrad)]
    #[doc = available!(OnAllRanks)]
    ///
    /// # Errors
    ///
    /// Returns an error if the new gradient has a different shape, dtype or device.
    pub fn set_output_grad(&mut self, gradient: Tensor) -> Result<()>
    where
        P: CanSetOutputGrad + OnAllRanks,
    {
        let call = self.as_run().modules.call();
        if let Some(own) = &call.output_grad
            && !has_form_of(own, &gradient)
        {
            return Err(Error::usage(format!(
                "the gradient of the output of `{}` is {}, and cannot be replaced by one that is {}",
                self.as_run().modules.name(),
                described(own),
                described(&gradient)
            )));
        }
        self.run_mut().modules.call_mut().output_grad = Some(gradient);
        Ok(())
    }

    /// Replaces the input of the module with a tensor of any shape. If the module cannot process
    /// it, the run ends with the error of the module.
    ///
    #[doc = available!(CanSetInput)]
    #[doc = available!(OnAllRanks)]
    pub fn set_input(&mut self, input: Tensor)
    where
        P: CanSetInput + OnAllRanks,
    {
        self.run_mut().modules.call_mut().input = input.into();
    }

    /// Makes the backward pass recompute the activations of this call of the module, instead of
    /// keeping them in memory until then. Does not change any result: see
    /// [`ActivationCheckpointing`](crate::hooks::ActivationCheckpointing). Has no effect if
    /// gradients are disabled, within a module whose activations are recomputed already, or if a
    /// hook replaces the module.
    ///
    #[doc = available!(CanCheckpointActivations)]
    pub fn checkpoint_activations(&self)
    where
        P: CanCheckpointActivations,
    {
        self.as_run().modules.call().is_checkpointed.set(true);
    }

    /// Sets the output of the module, either instead of computing it or to replace the computed
    /// one.
    ///
    #[doc = available!(CanSetOutput)]
    #[doc = available!(OnAllRanks)]
    ///
    /// Around a module, call it within [`Next::replace`](crate::Next::replace) to skip the module,
    /// or after [`Next::run`](crate::Next::run) to replace its output.
    ///
    /// # Errors
    ///
    /// Returns an error if the module already has an output with a different shape, dtype or
    /// device, because the rest of the network expects these. [`force_output`](Cx::force_output)
    /// accepts such an output.
    pub fn set_output(&mut self, output: Tensor) -> Result<()>
    where
        P: CanSetOutput + OnAllRanks,
    {
        let modules = &mut self.run_mut().modules;
        if let Some(own) = &modules.call().output
            && !has_form_of(own, &output)
        {
            return Err(differs(modules.name(), own, &output));
        }
        modules.call_mut().output = Some(output);
        Ok(())
    }

    /// Sets the output of the module like [`set_output`](Cx::set_output), but accepts any shape,
    /// dtype and device. Use it in a hook that changes these on purpose, such as one that merges
    /// tokens.
    ///
    #[doc = available!(CanSetOutput)]
    #[doc = available!(OnAllRanks)]
    pub fn force_output(&mut self, output: Tensor)
    where
        P: CanSetOutput + OnAllRanks,
    {
        self.run_mut().modules.call_mut().output = Some(output);
    }
}

/// Returns whether two tensors have the same shape, dtype and device.
fn has_form_of(one: &Tensor, other: &Tensor) -> bool {
    (one.size(), one.kind(), one.device()) == (other.size(), other.kind(), other.device())
}

fn described(tensor: &Tensor) -> String {
    format!("{:?}, {:?} on {:?}", tensor.size(), tensor.kind(), tensor.device())
}

#[cold]
fn differs(module: &str, own: &Tensor, other: &Tensor) -> Error {
    Error::usage(format!(
        "the output of `{module}` is {}, and cannot be replaced by one that is {}: call `cx.force_output(…)` if the rest of the \
         network can handle it",
        described(own),
        described(other)
    ))
}
