//! Events and streams of CUDA devices.

use std::ffi::c_void;

use tch::{Device, Tensor};
use trainer_sys::{
    trainer_event_block, trainer_event_free, trainer_event_record, trainer_event_wait, trainer_record_stream,
    trainer_stream_enter, trainer_upload,
};

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
    /// Records an event after all work that is queued on this thread's current stream of a CUDA
    /// device.
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

    /// Makes this thread's current stream of a CUDA device wait for the event before it begins any
    /// work that is queued after this call. Returns immediately.
    pub(crate) fn block(&self, device: Device) -> Result<()> {
        // SAFETY: the handle is alive until it is dropped.
        outcome(unsafe { trainer_event_block(self.0, cuda(device)) })
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: this is the only owner of the handle, which the shim allocated.
        unsafe { trainer_event_free(self.0) };
    }
}

/// Replaces the default stream of a CUDA device with one of libtorch's pooled streams as the
/// current stream of this thread, until the thread ends.
pub(crate) fn enter_stream(device: Device) -> Result<()> {
    // SAFETY: the call only sets the current stream of this thread, or returns a message.
    outcome(unsafe { trainer_stream_enter(cuda(device)) })
}

/// Copies a tensor from the host to a CUDA device through pinned memory, on this thread's current
/// stream. Returns before the copy has ended.
pub(crate) fn upload(tensor: &Tensor, device: Device) -> Result<Tensor> {
    let mut copy = std::ptr::null_mut();
    // SAFETY: the handle is alive; the shim writes one handle, or returns a message.
    outcome(unsafe { trainer_upload(tensor.as_ptr(), cuda(device), &raw mut copy) })?;
    // SAFETY: without a message there is a handle, which nothing else owns.
    Ok(unsafe { Tensor::from_ptr(copy) })
}

/// Declares that this thread's current stream uses a CUDA tensor. When the tensor is freed, its
/// memory is not reused until the stream has finished the work that is queued at that time. This is
/// needed for a tensor that was allocated while another stream was current.
pub(crate) fn record_stream(tensor: &Tensor) -> Result<()> {
    // SAFETY: the handle is alive.
    outcome(unsafe { trainer_record_stream(tensor.as_ptr()) })
}
