//! The backward pass, and operations on all gradients of a list of parameters.

use tch::Tensor;
use trainer_sys::{
    trainer_backward, trainer_clip_grad_norm, trainer_clip_grad_value, trainer_drop_grads,
    trainer_scale_grads, trainer_set_grad, trainer_unscale_grads,
};

use super::tensors::Parameters;
use super::{outcome, text_of};
use crate::error::{Error, Result};

/// Drops the gradients of the parameters, leaving them undefined.
pub(crate) fn drop_grads(params: &Parameters) -> Result<()> {
    let handles = &params.tensors.handles;
    // SAFETY: the handles are alive, and `count` is their number.
    outcome(unsafe { trainer_drop_grads(handles.as_ptr(), handles.len()) })
}

/// Runs the backward pass of a scalar loss: for these parameters only, so that no other tensor gets
/// a gradient, or for all leaves of its graph.
pub(crate) fn backward(loss: &Tensor, params: Option<&Parameters>) -> Result<()> {
    let Some(params) = params else { return Ok(loss.f_backward()?) };
    let handles = &params.tensors.handles;
    // SAFETY: the handles are alive, and `count` is their number.
    outcome(unsafe { trainer_backward(loss.as_ptr(), handles.as_ptr(), handles.len()) })
}

/// Multiplies each gradient by `factor`. Parameters without a gradient are skipped.
pub(crate) fn scale_grads(params: &Parameters, factor: f64) -> Result<()> {
    // SAFETY: the handles are alive, and `count` is their number.
    params.call(|list| unsafe { trainer_scale_grads(list, factor) })
}

/// Multiplies each gradient by `factor`, and returns whether all gradients were finite. Parameters
/// without a gradient are skipped. Synchronizes with the device.
pub(crate) fn unscale_grads(params: &Parameters, factor: f64) -> Result<bool> {
    let mut finite = true;
    // SAFETY: the handles are alive, and `count` is their number; the shim writes one `bool`.
    params.call(|list| unsafe { trainer_unscale_grads(list, factor, &raw mut finite) })?;
    Ok(finite)
}

/// Clips the gradients of the parameters by their total norm, and returns the norm before clipping.
/// `total` is the norm if they are not all of the gradients that it is taken over.
pub(crate) fn clip_grad_norm(params: &Parameters, max_norm: f64, total: Option<&Tensor>) -> Result<Tensor> {
    let total = total.map_or(std::ptr::null(), Tensor::as_ptr);
    let mut norm = std::ptr::null_mut();
    // SAFETY: the handles are alive, and `count` is their number; the shim writes one handle, or
    // leaves null.
    params.call(|list| unsafe { trainer_clip_grad_norm(list, max_norm, total, &raw mut norm) })?;
    // SAFETY: without a message there is a handle, which nothing else owns.
    Ok(unsafe { Tensor::from_ptr(norm) })
}

/// Clamps each element of the gradients of the parameters to `[-max_value, max_value]`.
pub(crate) fn clip_grad_value(params: &Parameters, max_value: f64) -> Result<()> {
    // SAFETY: the handles are alive, and `count` is their number.
    params.call(|list| unsafe { trainer_clip_grad_value(list, max_value) })
}

/// Sets the gradient of the parameter to a copy of `grad`, which must have the parameter's shape
/// and dtype. Errors contain `name`.
pub(crate) fn set_grad(name: &str, param: &Tensor, grad: &Tensor) -> Result<()> {
    // SAFETY: the handles are alive; the shim checks that the gradient fits.
    let message = unsafe { trainer_set_grad(param.as_ptr().cast_mut(), grad.as_ptr()) };
    if message.is_null() {
        return Ok(());
    }
    Err(Error::usage(format!("the parameter `{name}` {}", text_of(message))))
}
