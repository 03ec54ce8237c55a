//! The memory of tensors: how much is allocated, and what shares it.

use std::ffi::c_void;
use std::ptr;

use tch::Tensor;
use trainer_sys::{
    trainer_memory_count, trainer_memory_count_start, trainer_memory_count_stop, trainer_memory_is_counted,
    trainer_storage,
};

use super::outcome;
use crate::error::Result;

/// Counts the bytes of tensors that any thread allocates on the CPU, until the counter is dropped.
#[derive(Debug)]
pub(crate) struct MemoryCounter(*mut c_void);

// SAFETY: the functions of the shim lock a mutex before they read or change what the handle refers
// to, so the thread that calls them makes no difference.
unsafe impl Send for MemoryCounter {}

impl MemoryCounter {
    /// Begins to count.
    ///
    /// # Errors
    ///
    /// Returns an error if the program has set another allocator of tensors.
    pub(crate) fn start() -> Result<Self> {
        let mut handle = ptr::null_mut();
        // SAFETY: the shim writes one handle, or returns a message.
        outcome(unsafe { trainer_memory_count_start(&raw mut handle) })?;
        Ok(MemoryCounter(handle))
    }

    /// The peak of the bytes that were allocated since the counter was created and not freed yet.
    pub(crate) fn peak(&self) -> u64 {
        let (mut bytes, mut peak) = (0, 0);
        // SAFETY: the handle is alive until the counter is dropped, and the shim writes two
        // numbers.
        unsafe { trainer_memory_count(self.0, &raw mut bytes, &raw mut peak) };
        u64::try_from(peak).unwrap_or_default()
    }

    /// Whether the memory at this address was allocated since the counter was created.
    pub(crate) fn is_counted(&self, address: usize) -> bool {
        // SAFETY: the handle is alive, and the shim compares the address with others.
        unsafe { trainer_memory_is_counted(self.0, ptr::without_provenance(address)) }
    }
}

impl Drop for MemoryCounter {
    fn drop(&mut self) {
        // SAFETY: the handle is alive, and is not used afterwards.
        unsafe { trainer_memory_count_stop(self.0) };
    }
}

/// Returns the address and the size in bytes of the memory that holds the values of a tensor, on
/// its device. Tensors with the same address share it. Returns `None` if there is none.
pub(crate) fn storage(tensor: &Tensor) -> Option<(usize, u64)> {
    let (mut address, mut bytes) = (ptr::null(), 0);
    // SAFETY: the handle is alive, and the shim only reads it and writes two numbers.
    unsafe { trainer_storage(tensor.as_ptr(), &raw mut address, &raw mut bytes) };
    (!address.is_null()).then(|| (address.addr(), bytes as u64))
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind};

    use super::*;

    const FLOAT: (Kind, Device) = (Kind::Float, Device::Cpu);

    #[test]
    fn tensors_that_share_memory_have_one_address() {
        let tensor = Tensor::ones([10, 3], FLOAT);
        let (address, bytes) = storage(&tensor).unwrap();
        assert_eq!(bytes, 120);
        assert_eq!(storage(&tensor.narrow(0, 5, 2)), Some((address, 120)));
        assert_ne!(storage(&tensor.copy()), Some((address, 120)));
        assert_eq!(storage(&Tensor::new()), None);
    }
}
