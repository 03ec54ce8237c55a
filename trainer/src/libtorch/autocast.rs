//! Autocast: running operations of a forward pass in a lower precision where that is safe.

use std::marker::PhantomData;

use trainer_sys::{AutocastMode, trainer_autocast_enter, trainer_autocast_exit};

/// The precision in which operations compute under autocast.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Precision {
    Bf16,
    Fp16,
}

/// Sets the autocast mode of this thread, and restores the previous mode when dropped, even after a
/// panic. Guards must be dropped in the reverse order of their creation.
pub(crate) struct AutocastGuard {
    before: AutocastMode,
    /// Makes the guard neither `Send` nor `Sync`, because the mode belongs to the thread.
    not_send: PhantomData<*const ()>,
}

impl AutocastGuard {
    /// Enables autocast for the CPU or for CUDA devices.
    pub(crate) fn enable(cuda: bool, precision: Precision) -> Self {
        AutocastGuard::enter(cuda, true, precision)
    }

    /// Disables autocast for the CPU or for CUDA devices.
    pub(crate) fn disable(cuda: bool) -> Self {
        AutocastGuard::enter(cuda, false, Precision::Bf16)
    }

    fn enter(cuda: bool, enabled: bool, precision: Precision) -> Self {
        // SAFETY: the call only sets flags of this thread.
        let before = unsafe { trainer_autocast_enter(cuda, enabled, precision == Precision::Fp16) };
        AutocastGuard { before, not_send: PhantomData }
    }
}

impl Drop for AutocastGuard {
    fn drop(&mut self) {
        // SAFETY: `trainer_autocast_enter` returned this mode on this thread, which the guard
        // cannot leave.
        unsafe { trainer_autocast_exit(self.before) };
    }
}
