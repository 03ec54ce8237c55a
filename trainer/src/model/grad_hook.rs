//! [`OnGrad`]: closures that receive the gradient of a tensor.

use std::fmt;
use std::sync::{Mutex, TryLockError};

use tch::Tensor;

use crate::error::Result;
use crate::libtorch;
use crate::moments::never::Returned;

/// Calls a closure with the gradient of a tensor, like PyTorch's `Tensor.register_hook`. tch itself
/// has no such method.
pub trait OnGrad {
    /// Calls `closure` with the gradient of the tensor each time a backward pass computes it.
    ///
    /// The closure can return nothing, a tensor that replaces the gradient, or an `Option<Tensor>`.
    /// A replacement must have the shape of the gradient. The closure is called on the thread that
    /// computes the gradient; for a tensor on a GPU, this is one of libtorch's threads. The closure
    /// lives as long as the graph of the tensor, so it must not own a tensor of that graph: the
    /// resulting reference cycle would never be freed.
    ///
    /// ```
    /// use std::sync::{Arc, Mutex};
    ///
    /// use trainer::prelude::*;
    ///
    /// let weight = Tensor::from_slice(&[1.0, 2.0]).set_requires_grad(true);
    /// let hidden = &weight * 3.0;
    /// let seen = Arc::new(Mutex::new(None));
    /// let kept = Arc::clone(&seen);
    /// hidden.on_grad(move |grad| *kept.lock().unwrap() = Some(grad.copy()))?; // observes it
    /// hidden.on_grad(|grad| grad * 10.0)?; // replaces it
    /// hidden.sum(Kind::Double).backward();
    /// assert_eq!(seen.lock().unwrap().take(), Some(Tensor::from_slice(&[1.0, 1.0])));
    /// assert_eq!(weight.grad(), Tensor::from_slice(&[30.0, 30.0]));
    /// # Ok::<(), trainer::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns an error if the tensor does not require a gradient. The backward pass returns an
    /// error if the closure panics, if it is called recursively, or if its replacement does not
    /// have the shape of the gradient.
    #[doc(alias = "register_hook")]
    fn on_grad<R: GradOutcome>(&self, closure: impl FnMut(&Tensor) -> R + Send + 'static)
    -> Result<GradHook>;
}

impl OnGrad for Tensor {
    fn on_grad<R: GradOutcome>(
        &self,
        closure: impl FnMut(&Tensor) -> R + Send + 'static,
    ) -> Result<GradHook> {
        let closure = Mutex::new(closure);
        let callback = Box::new(move |gradient: &Tensor| {
            let mut closure = match closure.try_lock() {
                Ok(closure) => closure,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => panic!(
                    "the closure is already running: a backward pass that calls it cannot run inside it, or on another thread at \
                     the same time"
                ),
            };
            closure(gradient).replacement()
        });
        Ok(GradHook { tensor: self.shallow_clone(), id: libtorch::on_grad(self, callback)? })
    }
}

/// A type that a closure of [`on_grad`](OnGrad::on_grad) can return.
#[diagnostic::on_unimplemented(
    message = "a closure of `on_grad` returns nothing, a `Tensor` or an `Option<Tensor>`, not `{Self}`",
    label = "cannot be returned by a closure of `on_grad`"
)]
pub trait GradOutcome {
    /// Returns the tensor that replaces the gradient, if any.
    fn replacement(self) -> Option<Tensor>;
}

#[diagnostic::do_not_recommend]
impl GradOutcome for () {
    fn replacement(self) -> Option<Tensor> {
        None
    }
}

#[diagnostic::do_not_recommend]
impl GradOutcome for Tensor {
    fn replacement(self) -> Option<Tensor> {
        Some(self)
    }
}

#[diagnostic::do_not_recommend]
impl GradOutcome for Option<Tensor> {
    fn replacement(self) -> Option<Tensor> {
        self
    }
}

#[diagnostic::do_not_recommend]
impl GradOutcome for <fn() -> ! as Returned>::Type {
    fn replacement(self) -> Option<Tensor> {
        match self {}
    }
}

/// A handle to a closure that [`OnGrad::on_grad`] registered. Dropping the handle does not remove
/// the closure. The handle keeps the tensor and its graph alive.
pub struct GradHook {
    tensor: Tensor,
    id: u32,
}

impl GradHook {
    /// Removes the closure.
    ///
    /// # Errors
    ///
    /// Returns an error if libtorch fails.
    pub fn remove(self) -> Result<()> {
        libtorch::remove_on_grad(&self.tensor, self.id)
    }
}

impl fmt::Debug for GradHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GradHook").field("id", &self.id).finish_non_exhaustive()
    }
}
