//! The number of times that the host waited for a GPU.

use trainer_sys::{trainer_waits, trainer_waits_start};

/// Counts waits from now on, until the process ends. Returns whether this is possible: libtorch
/// reports waits to a single receiver, which belongs to Python if Python runs in this process.
pub(crate) fn count_waits() -> bool {
    // SAFETY: the call only registers a receiver that is never removed.
    unsafe { trainer_waits_start() }
}

/// Returns the number of times that a thread of this process waited for a CUDA device since
/// [`count_waits`] was first called.
#[inline]
pub(crate) fn waits() -> u64 {
    // SAFETY: the call only reads a count.
    unsafe { trainer_waits() }
}

/// Reports a wait as libtorch does, for tests on machines without a GPU.
#[cfg(test)]
pub(crate) fn imitate_wait() {
    // SAFETY: the call only changes a count.
    unsafe { trainer_sys::trainer_waits_imitate() };
}
