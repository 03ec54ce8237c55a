//! Hashes of tensors. Only the tensors that may have changed are read.

use std::ffi::{CStr, c_char};

use tch::Device;
use trainer_sys::{
    TrainerScan, trainer_cpu_capability, trainer_scan, trainer_scan_bytes, trainer_scan_free,
    trainer_scan_new, trainer_scan_random,
};

use super::{TensorList, outcome};
use crate::error::{Error, Result};

/// What a scan hashes for each tensor in a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Aspect {
    /// The values of the tensor.
    Values,
    /// The values of the tensor, and whether it is a leaf that requires a gradient.
    ValuesAndMark,
    /// The values of the tensor's gradient.
    Gradient,
}

/// Remembers the tensors of a list, and finds those that have changed since the last scan.
#[derive(Debug)]
pub(crate) struct Scan {
    scan: *mut TrainerScan,
    changed: Vec<u32>,
    hashes: Vec<u64>,
}

// SAFETY: only this value refers to the object, which is not tied to a thread.
unsafe impl Send for Scan {}

impl Drop for Scan {
    fn drop(&mut self) {
        // SAFETY: `trainer_scan_new` created the object, and nothing else frees it.
        unsafe { trainer_scan_free(self.scan) }
    }
}

impl Scan {
    pub(crate) fn new() -> Self {
        // SAFETY: the function only allocates.
        Scan { scan: unsafe { trainer_scan_new() }, changed: Vec::new(), hashes: Vec::new() }
    }

    /// Compares the hash of this aspect of each tensor in a list with the hash in the last scan.
    /// Returns the indices and hashes of the tensors whose hash has changed. The hash of a tensor
    /// that does not exist is 0. If `trusts` is set, a tensor is read only if its identity, version
    /// counter or data pointer has changed, so a change through `tensor.data()` goes unnoticed. A
    /// tensor without memory for its values has a hash of its own.
    ///
    /// # Errors
    ///
    /// Returns the index of a tensor that cannot be read, and the error.
    pub(crate) fn changed(
        &mut self,
        list: &TensorList,
        aspect: Aspect,
        trusts: bool,
    ) -> Result<impl Iterator<Item = (usize, u64)> + '_, (usize, Error)> {
        // A list may be shorter than the previous one.
        let room = self.changed.len().max(list.len());
        self.changed.resize(room, 0);
        self.hashes.resize(room, 0);
        let mut found = 0;
        // SAFETY: the handles are alive, `count` is their number, and both outputs have room for
        // the longest list so far.
        outcome(unsafe {
            trainer_scan(
                self.scan,
                list.handles.as_ptr(),
                list.len(),
                aspect == Aspect::Gradient,
                aspect == Aspect::ValuesAndMark,
                trusts,
                self.changed.as_mut_ptr(),
                self.hashes.as_mut_ptr(),
                &raw mut found,
            )
        })
        .map_err(|error| (found, error))?;
        let changed = self.changed[..found].iter().map(|place| *place as usize);
        Ok(changed.zip(self.hashes[..found].iter().copied()))
    }
}

/// Returns a hash of these bytes.
pub(crate) fn hash_of_bytes(bytes: &[u8]) -> u64 {
    // SAFETY: the pointer is valid for this number of bytes.
    unsafe { trainer_scan_bytes(bytes.as_ptr(), bytes.len()) }
}

/// Returns a hash of the state of the random number generator of the CPU or of a CUDA device.
pub(crate) fn hash_of_random_state(device: Device) -> Result<u64> {
    let cuda = match device {
        Device::Cuda(nth) => i64::try_from(nth).unwrap_or(-1),
        _ => -1,
    };
    let mut hash = 0;
    // SAFETY: the shim writes one number, or returns a message.
    outcome(unsafe { trainer_scan_random(cuda, &raw mut hash) })?;
    Ok(hash)
}

/// Returns the instruction set of libtorch's kernels, such as `AVX2`.
pub(crate) fn cpu_capability() -> String {
    let mut text = [0; 64];
    // SAFETY: the shim writes a null-terminated text of at most this number of bytes.
    unsafe { trainer_cpu_capability(text.as_mut_ptr().cast::<c_char>(), text.len()) };
    CStr::from_bytes_until_nul(&text)
        .map_or_else(|_| String::new(), |text| text.to_string_lossy().into_owned())
}
