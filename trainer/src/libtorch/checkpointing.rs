//! Activation checkpointing: recomputing parts of a forward pass during the backward pass.

use std::cell::Cell;
use std::marker::PhantomData;

use trainer_sys::{trainer_checkpointing_begin, trainer_checkpointing_end, trainer_checkpointing_pause};

use super::{outcome, text_of};
use crate::error::Result;

thread_local! {
    /// Whether a region is running on this thread.
    static IS_RUNNING: Cell<bool> = const { Cell::new(false) };
}

/// A part of a forward pass on this thread. The autograd graph does not keep the results of the
/// operators in the region: the backward pass runs these operators again, with the same random
/// numbers and the same autocast mode.
#[derive(Debug)]
pub(crate) struct CheckpointedRegion {
    /// Makes the region neither `Send` nor `Sync`, because it belongs to the thread.
    not_send: PhantomData<*const ()>,
}

impl CheckpointedRegion {
    /// Begins a region. Returns `None` if gradients are disabled, or within another region.
    pub(crate) fn begin() -> Result<Option<Self>> {
        if IS_RUNNING.get() {
            return Ok(None);
        }
        let mut begun = false;
        // SAFETY: the shim writes one value, or returns a message.
        outcome(unsafe { trainer_checkpointing_begin(&raw mut begun) })?;
        IS_RUNNING.set(begun);
        Ok(begun.then_some(CheckpointedRegion { not_send: PhantomData }))
    }

    /// Ends the region.
    ///
    /// # Errors
    ///
    /// Returns an error with the reason if the operators of the region cannot run again with the
    /// same results.
    pub(crate) fn end(self) -> Result<(), String> {
        std::mem::forget(self);
        end()
    }
}

impl Drop for CheckpointedRegion {
    fn drop(&mut self) {
        let _ = end();
    }
}

fn end() -> Result<(), String> {
    IS_RUNNING.set(false);
    // SAFETY: the shim changes only state of this thread, which a region cannot leave.
    let message = unsafe { trainer_checkpointing_end() };
    if message.is_null() { Ok(()) } else { Err(text_of(message)) }
}

/// Sets whether operators belong to the region of this thread, and restores the previous setting
/// when dropped.
pub(crate) struct RegionPause {
    before: Option<bool>,
    /// Makes the guard neither `Send` nor `Sync`, because it belongs to the thread.
    not_send: PhantomData<*const ()>,
}

impl RegionPause {
    /// Pauses the region while hooks compute. Their operators do not belong to the region and are
    /// not repeated.
    #[inline]
    pub(crate) fn begin() -> Self {
        RegionPause::set(true)
    }

    /// Interrupts the pause while a module computes its forward pass, which belongs to the region.
    #[inline]
    pub(crate) fn interrupt() -> Self {
        RegionPause::set(false)
    }

    #[inline]
    fn set(paused: bool) -> Self {
        // SAFETY: the shim sets a flag of this thread.
        let before = IS_RUNNING.get().then(|| unsafe { trainer_checkpointing_pause(paused) });
        RegionPause { before, not_send: PhantomData }
    }
}

impl Drop for RegionPause {
    #[inline]
    fn drop(&mut self) {
        if let Some(before) = self.before {
            // SAFETY: the shim sets a flag of this thread, which the guard cannot leave.
            unsafe { trainer_checkpointing_pause(before) };
        }
    }
}
