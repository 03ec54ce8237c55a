//! The watcher of a thread: the run, [`summary`](super::summary()) or [`outputs`](super::outputs())
//! that observes the modules called on the thread.

use std::cell::Cell;

thread_local! {
    /// The current watcher: the ID of a run in a phase, [`NOTHING`], [`SUMMARY`] or [`OUTPUTS`].
    pub(crate) static WATCHER: Cell<u64> = const { Cell::new(NOTHING) };
}

/// The watcher of a thread on which modules are not observed.
pub(crate) const NOTHING: u64 = 0;
/// The watcher of a thread on which [`summary`](super::summary()) is running.
pub(crate) const SUMMARY: u64 = u64::MAX;
/// The watcher of a thread on which [`outputs`](super::outputs()) is running.
pub(crate) const OUTPUTS: u64 = u64::MAX - 1;
/// The bit that is set in the watcher of a run while [`outputs`](super::outputs()) is running too.
pub(crate) const RECORDING: u64 = 1 << 63;

/// Sets the watcher of this thread, and restores the previous one when dropped.
pub(crate) struct WatchGuard(u64);

impl WatchGuard {
    #[inline]
    pub(crate) fn set(watcher: u64) -> Self {
        WatchGuard(WATCHER.replace(watcher))
    }

    /// Disables observation, for an entry point that may run inside a forward pass of another run.
    pub(crate) fn nothing() -> Self {
        WatchGuard::set(NOTHING)
    }

    pub(crate) fn outputs() -> Self {
        WatchGuard::set(OUTPUTS)
    }

    pub(crate) fn summary() -> Self {
        WatchGuard::set(SUMMARY)
    }
}

impl Drop for WatchGuard {
    #[inline]
    fn drop(&mut self) {
        WATCHER.set(self.0);
    }
}
