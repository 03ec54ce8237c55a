//! Events on the stream of a CUDA device.

use std::ffi::c_void;

use tch::Device;
use trainer_sys::{trainer_event_free, trainer_event_record, trainer_event_wait};

use super::outcome;
use super::random::cuda;
use crate::error::Result;

/// A position in the queue of work of a CUDA stream.
#[derive(Debug)]
pub(crate) struct Event(*mut c_void);

// SAFETY: libtorch's events may be waited for and destroyed on any thread, and only one thread at a
// time owns this one.
unsafe impl Send for Event {}

impl Event {
    /// Records an event after all work that is queued on the current stream of a CUDA device.
    pub(crate) fn record(device: Device) -> Result<Self> {
        let mut event = std::ptr::null_mut();
        // SAFETY: the shim writes one handle, or leaves null and returns a message.
        outcome(unsafe { trainer_event_record(cuda(device), &raw mut event) })?;
        Ok(Event(event))
    }

    /// Waits until the device has finished all work that was queued before the event.
    pub(crate) fn wait(&self) -> Result<()> {
        // SAFETY: the handle is alive until it is dropped.
        outcome(unsafe { trainer_event_wait(self.0) })
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: this is the only owner of the handle, which the shim allocated.
        unsafe { trainer_event_free(self.0) };
    }
}
