//! Counting the floating-point operations of a thread.

use std::thread::{self, ThreadId};

use trainer_sys::{trainer_flops, trainer_flops_start, trainer_flops_stop};

use super::outcome;
use crate::error::Result;

/// Counts the floating-point operations of the thread that created the counter, until the counter
/// is dropped.
#[derive(Debug)]
pub(crate) struct FlopCounter {
    handle: u64,
    thread: ThreadId,
    /// The count when the counter was created.
    before: u64,
}

impl FlopCounter {
    pub(crate) fn start() -> Result<Self> {
        let mut handle = 0;
        // SAFETY: the shim writes one number, or returns a message.
        outcome(unsafe { trainer_flops_start(&raw mut handle) })?;
        // SAFETY: the shim reads a number of this thread.
        let before = unsafe { trainer_flops() };
        Ok(FlopCounter { handle, thread: thread::current().id(), before })
    }

    /// The number of operations since the counter was created, or 0 on another thread.
    pub(crate) fn count(&self) -> u64 {
        if self.thread != thread::current().id() {
            return 0;
        }
        // SAFETY: the shim reads a number of this thread.
        let now = unsafe { trainer_flops() };
        now - self.before
    }
}

impl Drop for FlopCounter {
    fn drop(&mut self) {
        // Another thread cannot stop the count, which then continues until the thread that started
        // it ends.
        if self.thread == thread::current().id() {
            // SAFETY: the handle belongs to this thread, and is removed only once.
            let _ = outcome(unsafe { trainer_flops_stop(self.handle) });
        }
    }
}
