//! Hashes of tensors, of which only those are read that may have changed.

use std::ffi::{CStr, c_char};

use tch::Device;
use trainer_sys::{
    TrainerScan, trainer_cpu_capability, trainer_scan, trainer_scan_bytes, trainer_scan_free,
    trainer_scan_new, trainer_scan_random,
};

use super::{TensorList, outcome};
use crate::error::Result;

/// The values that a scan reads from each tensor of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Aspect {
    /// Its values.
    Values,
    /// Its values, and whether it is a leaf that requires a gradient.
    ValuesAndMark,
    /// The values of its gradient.
    Gradient,
}

/// Remembers the tensors of a list, and finds those that have changed since the last scan.
#[derive(Debug)]
pub(crate) struct Scan {
    scan: *mut TrainerScan,
    changed: Vec<u32>,
    hashes: Vec<u64>,
}

// SAFETY: only this value refers to the object, which does not belong to a thread.
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

    /// Returns the places and hashes of the tensors of a list of which this aspect has another hash
    /// than in the last scan; 0 is the hash of a tensor that does not exist. A scan that `trusts`
    /// reads a tensor only if its identity, its version counter or its data pointer have changed,
    /// which does not notice a change through `tensor.data()`.
    pub(crate) fn changed(
        &mut self,
        list: &TensorList,
        aspect: Aspect,
        trusts: bool,
    ) -> Result<impl Iterator<Item = (usize, u64)> + '_> {
        // A list may be shorter than the one before.
        let room = self.changed.len().max(list.len());
        self.changed.resize(room, 0);
        self.hashes.resize(room, 0);
        let mut found = 0;
        // SAFETY: the handles are alive, `count` is their number, and both outputs have room for the
        // longest list so far.
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
        })?;
        let changed = self.changed[..found].iter().map(|place| *place as usize);
        Ok(changed.zip(self.hashes[..found].iter().copied()))
    }
}

/// Returns the hash of bytes.
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

/// Returns the instruction set of libtorch's kernels: `AVX2`.
pub(crate) fn cpu_capability() -> String {
    let mut text = [0; 64];
    // SAFETY: the shim writes a text with its end into this number of bytes.
    unsafe { trainer_cpu_capability(text.as_mut_ptr().cast::<c_char>(), text.len()) };
    CStr::from_bytes_until_nul(&text)
        .map_or_else(|_| String::new(), |text| text.to_string_lossy().into_owned())
}
