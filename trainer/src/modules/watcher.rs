//! What observes the modules that compute on a thread.

use std::cell::Cell;

thread_local! {
    /// What observes the modules of this thread: the hooks of a run in one of its phases, or
    /// [`NOTHING`], or [`SUMMARY`].
    pub(crate) static WATCHER: Cell<u64> = const { Cell::new(NOTHING) };
}

pub(crate) const NOTHING: u64 = 0;
/// [`summary`](super::summary()) is running.
pub(crate) const SUMMARY: u64 = u64::MAX;

/// Changes the watcher of this thread until it is dropped.
pub(crate) struct WatchGuard(u64);

impl WatchGuard {
    #[inline]
    pub(crate) fn set(watcher: u64) -> Self {
        WatchGuard(WATCHER.replace(watcher))
    }

    /// Lets nothing observe modules, for an entry that may run within the forward pass of another.
    pub(crate) fn nothing() -> Self {
        WatchGuard::set(NOTHING)
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
