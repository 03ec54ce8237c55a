//! Callbacks for the gradients of tensors.

use std::ffi::{CString, c_char, c_void};
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};

use tch::Tensor;
use trainer_sys::{C_tensor, trainer_accumulated_free, trainer_on_accumulated, trainer_on_grad};

use super::outcome;
use crate::error::{Result, discard_panic, panic_text};

/// A callback that receives a gradient and may return a tensor that replaces it.
pub(crate) type Callback = Box<dyn Fn(&Tensor) -> Option<Tensor> + Send + Sync>;

unsafe extern "C" {
    /// Copies a string into memory that `free` accepts.
    fn strdup(text: *const c_char) -> *mut c_char;
}

/// Calls `callback` with each gradient of the tensor, as long as the tensor's graph lives. The
/// callback cannot be removed. If `is_first` is set, it is called before the callbacks that the
/// tensor already has, otherwise after them.
pub(crate) fn on_grad(tensor: &Tensor, is_first: bool, callback: Callback) -> Result<()> {
    let with = Box::into_raw(Box::new(callback)).cast::<c_void>();
    // SAFETY: the handle is alive. The shim owns `with` from here on: it passes `with` to `call`
    // and finally, exactly once and not while `call` runs, to `forget`, even after an error.
    // `Callback` is `Send` and `Sync`, so any thread may call and drop it.
    outcome(unsafe { trainer_on_grad(tensor.as_ptr(), is_first, call, forget::<Callback>, with) })
}

/// # Safety
///
/// `with` must point to a `Callback` that has not been passed to `forget`, `gradient` must be a
/// handle that nothing else owns, and `message` must be valid for writes.
unsafe extern "C" fn call(
    with: *const c_void,
    gradient: *mut C_tensor,
    message: *mut *mut c_char,
) -> *mut C_tensor {
    // SAFETY: the caller guarantees both.
    let (callback, gradient) = unsafe { (&*with.cast::<Callback>(), Tensor::from_ptr(gradient)) };
    // SAFETY: the caller guarantees that `message` can be written to.
    match unsafe { caught(message, move || callback(&gradient)) } {
        // The shim owns the handle from here on.
        Some(Some(replacement)) => ManuallyDrop::new(replacement).as_ptr().cast_mut(),
        Some(None) | None => std::ptr::null_mut(),
    }
}

/// Runs `body`. If it panics, writes the text of the panic: a panic must not unwind through C++,
/// not even one from a destructor.
///
/// # Safety
///
/// `message` must be valid for writes.
unsafe fn caught<R>(message: *mut *mut c_char, body: impl FnOnce() -> R) -> Option<R> {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(done) => Some(done),
        Err(payload) => {
            let text = message_of(&panic_text(&*payload));
            discard_panic(payload);
            // SAFETY: the caller guarantees that `message` can be written to; the shim frees it.
            unsafe { *message = text };
            None
        }
    }
}

/// Returns a copy of a text that C++ frees.
fn message_of(text: &str) -> *mut c_char {
    let text = CString::new(text.replace('\0', " ")).unwrap_or_default();
    // SAFETY: the text ends in a null.
    unsafe { strdup(text.as_ptr()) }
}

/// # Safety
///
/// `with` must point to a `T` that nothing uses after this call.
unsafe extern "C" fn forget<T>(with: *mut c_void) {
    // SAFETY: the caller guarantees it.
    let callback = unsafe { Box::from_raw(with.cast::<T>()) };
    // The closure owns values of the user, whose destructors may panic.
    if let Err(payload) = catch_unwind(AssertUnwindSafe(|| drop(callback))) {
        discard_panic(payload);
    }
}

/// A callback that gets whether a gradient was accumulated.
type OnAccumulated = Box<dyn Fn(bool) -> Result<()> + Send + Sync>;

/// Keeps a callback of [`on_accumulated`]: no call of it begins once the handle is dropped. A call
/// that is running ends as usual.
#[derive(Debug)]
pub(crate) struct AccumulatedHook(*mut c_void);

// SAFETY: the handle owns a node of the graph and the callback, both of which any thread may use
// and drop.
unsafe impl Send for AccumulatedHook {}

impl Drop for AccumulatedHook {
    fn drop(&mut self) {
        // SAFETY: the shim made the handle, and it is not used again.
        unsafe { trainer_accumulated_free(self.0) };
    }
}

/// Calls `callback` each time that a backward pass has accumulated the gradient of the leaf, or has
/// found that it is undefined, on the thread that does so. An error of the callback ends the pass.
/// In contrast to PyTorch's `register_post_accumulate_grad_hook`, no lock is held, so `callback`
/// can run a backward pass.
///
/// The handle keeps the leaf alive.
pub(crate) fn on_accumulated(leaf: &Tensor, callback: OnAccumulated) -> Result<AccumulatedHook> {
    let with = Box::into_raw(Box::new(callback)).cast::<c_void>();
    let mut handle = std::ptr::null_mut();
    // SAFETY: the tensor is alive. The shim owns `with` from here on: it passes `with` to
    // `call_accumulated` and finally, exactly once and not while that runs, to `forget`, even after
    // an error. `OnAccumulated` is `Send` and `Sync`, so any thread may call and drop it.
    let message = unsafe {
        trainer_on_accumulated(
            leaf.as_ptr(),
            call_accumulated,
            forget::<OnAccumulated>,
            with,
            &raw mut handle,
        )
    };
    outcome(message)?;
    Ok(AccumulatedHook(handle))
}

/// # Safety
///
/// `with` must point to an `OnAccumulated` that has not been passed to `forget`, and `message` must
/// be valid for writes.
unsafe extern "C" fn call_accumulated(with: *const c_void, is_defined: bool, message: *mut *mut c_char) {
    // SAFETY: the caller guarantees both.
    unsafe {
        if let Some(Err(error)) = caught(message, || (*with.cast::<OnAccumulated>())(is_defined)) {
            *message = message_of(&error.to_string());
        }
    }
}
