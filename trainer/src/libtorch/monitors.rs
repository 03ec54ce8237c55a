//! Norms of tensors, for the monitors.

use tch::Tensor;
use trainer_sys::trainer_norms;

use super::outcome;
use crate::error::Result;

/// Returns the L2 norm of each tensor, as one vector on the device of the first tensor.
pub(crate) fn norms<'a>(tensors: impl IntoIterator<Item = &'a Tensor>) -> Result<Tensor> {
    let handles: Vec<_> = tensors.into_iter().map(|tensor| tensor.as_ptr().cast_mut()).collect();
    let mut norms = std::ptr::null_mut();
    // SAFETY: the tensors are borrowed for `'a`, so the handles are alive, and `len` is their
    // number; the shim writes one handle, or returns a message.
    outcome(unsafe { trainer_norms(handles.as_ptr(), handles.len(), &raw mut norms) })?;
    // SAFETY: without a message there is a handle, which nothing else owns.
    Ok(unsafe { Tensor::from_ptr(norms) })
}
