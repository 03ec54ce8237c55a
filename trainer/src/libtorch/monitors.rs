//! Readings for the monitors: norms of tensors, and the memory and the PCI bus id of a CUDA device.

use std::ffi::c_char;
#[cfg(feature = "nvml")]
use std::ffi::c_int;

use tch::Tensor;
use torch_sys::C_tensor;

use super::outcome;
use crate::error::Result;

unsafe extern "C" {
    fn trainer_norms(tensors: *const *mut C_tensor, count: usize, norms: *mut *mut C_tensor) -> *mut c_char;
    fn trainer_cuda_memory(cuda: i64, memory: *mut CudaMemory) -> *mut c_char;
    #[cfg(feature = "nvml")]
    fn trainer_cuda_bus_id(cuda: i64, text: *mut c_char, size: c_int) -> bool;
}

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

/// The memory of a CUDA device in bytes, as libtorch's allocator counts it. Matches `CudaMemory` in
/// monitors.cpp.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CudaMemory {
    pub(crate) allocated: i64,
    pub(crate) peak_allocated: i64,
    pub(crate) reserved: i64,
    pub(crate) peak_reserved: i64,
}

impl CudaMemory {
    /// Reads the counts of libtorch's allocator for a CUDA device, without synchronizing with it.
    pub(crate) fn read(cuda: usize) -> Result<Self> {
        let mut memory = CudaMemory::default();
        let cuda = i64::try_from(cuda).unwrap_or(i64::MAX);
        // SAFETY: the shim writes one struct of the same layout, or returns a message.
        outcome(unsafe { trainer_cuda_memory(cuda, &raw mut memory) })?;
        Ok(memory)
    }
}

/// Returns the PCI bus id of a CUDA device: `0000:18:00.0`. `None` if the CUDA runtime is not
/// loaded or has no such device.
#[cfg(feature = "nvml")]
pub(crate) fn cuda_bus_id(cuda: usize) -> Option<String> {
    let mut text = [0_u8; 32];
    let (cuda, size) = (i64::try_from(cuda).ok()?, c_int::try_from(text.len()).ok()?);
    // SAFETY: the shim writes at most `size` bytes, with a null at the end, if it returns true.
    let is_known = unsafe { trainer_cuda_bus_id(cuda, text.as_mut_ptr().cast(), size) };
    let end = text.iter().position(|byte| *byte == 0).filter(|_| is_known)?;
    String::from_utf8(text[..end].to_vec()).ok()
}
