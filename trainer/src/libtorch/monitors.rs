//! Readings for the monitors: norms of tensors, and the memory and the PCI bus id of a CUDA device.

#[cfg(feature = "nvml")]
use std::ffi::c_int;

use tch::Tensor;
pub(crate) use trainer_sys::CudaMemory;
#[cfg(feature = "nvml")]
use trainer_sys::trainer_cuda_bus_id;
use trainer_sys::{trainer_cuda_memory, trainer_norms};

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

/// Reads the counts of libtorch's allocator for a CUDA device, without synchronizing with it.
pub(crate) fn cuda_memory(cuda: usize) -> Result<CudaMemory> {
    let mut memory = CudaMemory::default();
    let cuda = i64::try_from(cuda).unwrap_or(i64::MAX);
    // SAFETY: the shim writes one struct, or returns a message.
    outcome(unsafe { trainer_cuda_memory(cuda, &raw mut memory) })?;
    Ok(memory)
}

/// Returns the PCI bus id of a CUDA device: `0000:18:00.0`. `None` if the CUDA runtime is not
/// loaded or has no such device.
#[cfg(feature = "nvml")]
pub(crate) fn cuda_bus_id(cuda: usize) -> Option<String> {
    let mut text = [0_u8; 32];
    let cuda = i64::try_from(cuda).ok()?;
    let size = c_int::try_from(text.len()).ok()?;
    // SAFETY: the shim writes at most `size` bytes, with a null at the end, if it returns true.
    let is_known = unsafe { trainer_cuda_bus_id(cuda, text.as_mut_ptr().cast(), size) };
    let end = text.iter().position(|byte| *byte == 0).filter(|_| is_known)?;
    String::from_utf8(text[..end].to_vec()).ok()
}
