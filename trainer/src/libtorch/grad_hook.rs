//! Callbacks for the gradients of tensors.

use std::ffi::{CString, c_char, c_void};
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};

use tch::Tensor;
use trainer_sys::{C_tensor, trainer_on_grad};

use super::outcome;
use crate::error::{Result, discard_panic, panic_text};

/// A callback that receives a gradient and may return a tensor that replaces it.
pub(crate) type Callback = Box<dyn Fn(&Tensor) -> Option<Tensor> + Send + Sync>;

unsafe extern "C" {
    /// Copies a string into memory that `free` accepts.
    fn strdup(text: *const c_char) -> *mut c_char;
}

/// Calls `callback` with each gradient of the tensor, as long as the tensor's graph lives. The
/// callback cannot be removed.
pub(crate) fn on_grad(tensor: &Tensor, callback: Callback) -> Result<()> {
    let with = Box::into_raw(Box::new(callback)).cast::<c_void>();
    // SAFETY: the handle is alive. The shim owns `with` from here on: it passes `with` to `call`
    // and finally, exactly once and not while `call` runs, to `forget`, even after an error.
    // `Callback` is `Send` and `Sync`, so any thread may call and drop it.
    outcome(unsafe { trainer_on_grad(tensor.as_ptr(), call, forget, with) })
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
    // A panic must not unwind through C++, not even one from a destructor.
    match catch_unwind(AssertUnwindSafe(move || callback(&gradient))) {
        Ok(None) => std::ptr::null_mut(),
        // The shim owns the handle from here on.
        Ok(Some(replacement)) => ManuallyDrop::new(replacement).as_ptr().cast_mut(),
        Err(payload) => {
            let text = CString::new(panic_text(&*payload).replace('\0', " ")).unwrap_or_default();
            discard_panic(payload);
            // SAFETY: the caller guarantees that `message` can be written to, and frees it.
            unsafe { *message = strdup(text.as_ptr()) };
            std::ptr::null_mut()
        }
    }
}

/// # Safety
///
/// `with` must point to a `Callback` that nothing uses after this call.
unsafe extern "C" fn forget(with: *mut c_void) {
    // SAFETY: the caller guarantees it.
    let callback = unsafe { Box::from_raw(with.cast::<Callback>()) };
    // The closure owns values of the user, whose destructors may panic.
    if let Err(payload) = catch_unwind(AssertUnwindSafe(|| drop(callback))) {
        discard_panic(payload);
    }
}
