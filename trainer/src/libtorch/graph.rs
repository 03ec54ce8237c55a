//! What a tensor depends on: the leaves of its graph, and the operators that a thread calls.

use std::ffi::c_void;
use std::thread::{self, ThreadId};

use tch::Tensor;
use trainer_sys::{
    C_tensor, trainer_changes, trainer_flow_memory, trainer_flow_sources, trainer_flow_start,
    trainer_flow_stop, trainer_flow_trains, trainer_flow_uses, trainer_leaves,
};

use super::{outcome, text_of};
use crate::error::Result;

/// Returns the leaves of the graph of `of` that require gradients, each once, and whether the graph
/// contains gradients.
pub(crate) fn leaves(of: &Tensor) -> Result<(Vec<Tensor>, bool)> {
    let mut tensors = Vec::new();
    let mut contains_gradients = false;
    let with = std::ptr::from_mut::<Vec<Tensor>>(&mut tensors).cast::<c_void>();
    // SAFETY: the handle is alive. The shim calls `push` with `with`, which is valid until the call
    // returns, and writes one `bool`.
    outcome(unsafe { trainer_leaves(of.as_ptr(), push, with, &raw mut contains_gradients) })?;
    Ok((tensors, contains_gradients))
}

/// # Safety
///
/// `with` must point to a `Vec<Tensor>` that nothing else uses, and `leaf` must be a handle that
/// nothing else owns.
unsafe extern "C" fn push(with: *mut c_void, leaf: *mut C_tensor) {
    // SAFETY: the caller guarantees both.
    unsafe { (*with.cast::<Vec<Tensor>>()).push(Tensor::from_ptr(leaf)) }
}

/// # Safety
///
/// `with` must point to a `Vec<(usize, u64)>` that nothing else uses.
unsafe extern "C" fn push_memory(with: *mut c_void, address: *const c_void, bytes: usize) {
    // SAFETY: the caller guarantees it.
    unsafe { (*with.cast::<Vec<(usize, u64)>>()).push((address.addr(), bytes as u64)) }
}

/// Returns the number of times that a tensor was changed in place, as far as libtorch has counted
/// them.
pub(crate) fn changes(of: &Tensor) -> u64 {
    // SAFETY: the handle is alive, and the shim only reads.
    unsafe { trainer_changes(of.as_ptr()) }
}

/// Records the operators that the thread calls, until it is dropped.
#[derive(Debug)]
pub(crate) struct Flow {
    handle: u64,
    thread: ThreadId,
}

/// What the recorded operators say about tensors.
#[derive(Debug, Default)]
pub(crate) struct Uses {
    /// For each tensor, whether an operator has used it.
    pub(crate) used: Vec<bool>,
    /// Whether an operator has chosen something by the values of a tensor.
    pub(crate) selects: bool,
    /// Whether the recording is incomplete.
    pub(crate) has_failed: bool,
}

impl Flow {
    /// Starts to record. A thread can have one recording at a time.
    pub(crate) fn start() -> Result<Self> {
        let mut handle = 0;
        // SAFETY: the shim writes one number, or returns a message.
        outcome(unsafe { trainer_flow_start(&raw mut handle) })?;
        Ok(Flow { handle, thread: thread::current().id() })
    }

    /// For each tensor of `on`, returns whether the values of `of` were computed from its values
    /// or, if `is_trained` is set, were computed from them by operators that record gradients. Also
    /// returns whether everything that they were computed from is known: not if it includes a
    /// tensor that was created meanwhile, or if values were copied to the host before.
    pub(crate) fn sources(&self, of: &Tensor, is_trained: bool, on: &[Tensor]) -> Result<(Vec<bool>, bool)> {
        let handles: Vec<_> = on.iter().map(|tensor| tensor.as_ptr().cast_mut()).collect();
        let mut found = vec![false; on.len()];
        let mut is_known = false;
        // SAFETY: the handles are alive, `on.len()` is their number and that of the values that the
        // shim writes, besides one `bool`.
        outcome(unsafe {
            trainer_flow_sources(
                of.as_ptr(),
                is_trained,
                handles.as_ptr(),
                on.len(),
                found.as_mut_ptr(),
                &raw mut is_known,
            )
        })?;
        Ok((found, is_known))
    }

    /// Returns which of the tensors were used, and what else the operators have done.
    pub(crate) fn uses(&self, of: &[Tensor]) -> Result<Uses> {
        let handles: Vec<_> = of.iter().map(|tensor| tensor.as_ptr().cast_mut()).collect();
        let mut uses = Uses { used: vec![false; of.len()], ..Uses::default() };
        // SAFETY: the handles are alive, `of.len()` is their number and that of the values that the
        // shim writes, besides two `bool`s.
        outcome(unsafe {
            trainer_flow_uses(
                handles.as_ptr(),
                of.len(),
                uses.used.as_mut_ptr(),
                &raw mut uses.selects,
                &raw mut uses.has_failed,
            )
        })?;
        Ok(uses)
    }

    /// Returns the address and the size in bytes of each memory on the CPU that an operator has
    /// used and that still exists.
    pub(crate) fn memory(&self) -> Result<Vec<(usize, u64)>> {
        let mut found: Vec<(usize, u64)> = Vec::new();
        let with = (&raw mut found).cast::<c_void>();
        // SAFETY: the shim calls `push_memory` with `with`, which is valid until the call returns.
        outcome(unsafe { trainer_flow_memory(push_memory, with) })?;
        Ok(found)
    }

    /// Returns the layers that were called for training, such as `dropout` with a probability above
    /// 0.
    pub(crate) fn layers_for_training(&self) -> Vec<String> {
        // SAFETY: the shim returns null or a null-terminated string that it does not keep.
        let names = unsafe { trainer_flow_trains() };
        if names.is_null() {
            return Vec::new();
        }
        text_of(names).split(',').map(str::to_owned).collect()
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        // Another thread cannot stop the recording, which then continues until the thread that
        // started it ends.
        if self.thread == thread::current().id() {
            // SAFETY: the handle belongs to this thread, and is removed only once.
            let _ = outcome(unsafe { trainer_flow_stop(self.handle) });
        }
    }
}
