//! The warnings of libtorch, and losses whose inputs broadcast.

use std::marker::PhantomData;

use trainer_sys::{
    trainer_losses_start, trainer_losses_stop, trainer_warnings_begin, trainer_warnings_end,
    trainer_warnings_next,
};

use super::{outcome, text_of};
use crate::error::Result;

/// Keeps the warnings of libtorch on this thread, which it would otherwise print, until it is
/// dropped. Keeps one for each place in libtorch.
#[derive(Debug)]
pub(crate) struct Warnings {
    /// Makes the value neither `Send` nor `Sync`, because it belongs to the thread.
    not_send: PhantomData<*const ()>,
}

impl Warnings {
    pub(crate) fn begin() -> Result<Self> {
        // SAFETY: the shim allocates the handler, and keeps it until the call in `drop`.
        outcome(unsafe { trainer_warnings_begin() })?;
        Ok(Warnings { not_send: PhantomData })
    }

    /// Removes and returns the oldest warning that is kept on this thread.
    #[inline]
    pub(crate) fn next() -> Option<String> {
        // SAFETY: the shim returns null or a null-terminated string that it does not keep.
        let text = unsafe { trainer_warnings_next() };
        (!text.is_null()).then(|| text_of(text))
    }
}

impl Drop for Warnings {
    fn drop(&mut self) {
        // SAFETY: this thread began to keep warnings, and ends it once.
        unsafe { trainer_warnings_end() };
    }
}

/// Checks the inputs of the loss functions that this thread calls, until it is dropped.
#[derive(Debug)]
pub(crate) struct LossWatch {
    handle: u64,
    /// Makes the value neither `Send` nor `Sync`, because it belongs to the thread.
    not_send: PhantomData<*const ()>,
}

impl LossWatch {
    pub(crate) fn start() -> Result<Self> {
        let mut handle = 0;
        // SAFETY: the shim writes one number, or returns a message.
        outcome(unsafe { trainer_losses_start(&raw mut handle) })?;
        Ok(LossWatch { handle, not_send: PhantomData })
    }

    /// Ends the check, and describes the first loss whose prediction and target broadcast to a
    /// shape with more elements than either has.
    pub(crate) fn stop(self) -> Option<String> {
        let found = self.end();
        std::mem::forget(self);
        found
    }

    fn end(&self) -> Option<String> {
        // SAFETY: the handle belongs to this thread, and is removed only once.
        let text = unsafe { trainer_losses_stop(self.handle) };
        (!text.is_null()).then(|| text_of(text))
    }
}

impl Drop for LossWatch {
    fn drop(&mut self) {
        drop(self.end());
    }
}
