//! [`OnGrad`]: closures that receive the gradient of a tensor.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tch::Tensor;

use crate::error::{Result, discard_panic};
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
    /// lives until it is [removed](GradHook::remove), or as long as the graph of the tensor. It
    /// must not own a tensor of that graph: the resulting reference cycle would never be freed.
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
        let mut closure = closure;
        let closure: Closure = Box::new(move |gradient| closure(gradient).replacement());
        let state = Arc::new(Mutex::new(State::Ready(closure)));
        let handle = GradHook(Arc::downgrade(&state));
        libtorch::on_grad(self, false, Box::new(move |gradient| call(&state, gradient)))?;
        Ok(handle)
    }
}

type Closure = Box<dyn FnMut(&Tensor) -> Option<Tensor> + Send>;

/// The state of a closure. libtorch owns the function that calls the closure and never removes it,
/// because it may be running.
enum State {
    Ready(Closure),
    /// The call that runs owns the closure, and drops it at its end if `is_removed` is set by then.
    Running {
        is_removed: bool,
    },
    Removed,
}

/// Locks the state. The lock is never held while code of the user runs.
fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Calls the closure, unless it was removed.
fn call(state: &Mutex<State>, gradient: &Tensor) -> Option<Tensor> {
    let mut now = lock(state);
    let mut closure = match std::mem::replace(&mut *now, State::Running { is_removed: false }) {
        State::Ready(closure) => closure,
        State::Removed => {
            *now = State::Removed;
            return None;
        }
        running @ State::Running { is_removed } => {
            *now = running;
            if is_removed {
                return None;
            }
            drop(now);
            panic!(
                "the closure is already running: a backward pass that calls it cannot run inside it, or on another thread at \
                 the same time"
            );
        }
    };
    drop(now);
    let outcome = catch_unwind(AssertUnwindSafe(|| closure(gradient)));
    let mut now = lock(state);
    if let State::Running { is_removed: false } = *now {
        *now = State::Ready(closure);
        drop(now);
    } else {
        *now = State::Removed;
        drop(now);
        discard(closure);
    }
    outcome.unwrap_or_else(|payload| resume_unwind(payload))
}

/// Drops a closure. The values that it owns may panic then, like when the graph is freed.
fn discard(closure: Closure) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(|| drop(closure))) {
        discard_panic(payload);
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
/// the closure, and the handle keeps neither the closure nor the tensor alive.
///
/// A closure that is called once removes itself:
///
/// ```
/// use std::sync::{Arc, OnceLock};
///
/// use trainer::GradHook;
/// use trainer::prelude::*;
///
/// let weight = Tensor::from_slice(&[1.0, 2.0]).set_requires_grad(true);
/// let handle = Arc::new(OnceLock::<GradHook>::new());
/// let own = Arc::clone(&handle);
/// let first = weight.on_grad(move |grad| {
///     own.get().into_iter().for_each(GradHook::remove);
///     grad * 10.0
/// })?;
/// let _ = handle.set(first);
/// weight.sum(Kind::Double).backward();
/// weight.sum(Kind::Double).backward();
/// assert_eq!(weight.grad(), Tensor::from_slice(&[11.0, 11.0]));
/// # Ok::<(), trainer::Error>(())
/// ```
pub struct GradHook(Weak<Mutex<State>>);

impl GradHook {
    /// Removes the closure: no call of it begins from now on. Has no effect if the closure was
    /// already removed.
    ///
    /// Can be called on any thread, and inside the closure. A call that is running at the time
    /// ends as usual, and drops the closure when it ends; otherwise the closure is dropped now. A
    /// few bytes stay with the tensor until it is freed.
    pub fn remove(&self) {
        let Some(state) = self.0.upgrade() else { return };
        let mut now = lock(&state);
        let before = match &mut *now {
            State::Running { is_removed } => {
                *is_removed = true;
                return;
            }
            other => std::mem::replace(other, State::Removed),
        };
        drop(now);
        if let State::Ready(closure) = before {
            discard(closure);
        }
    }
}

impl fmt::Debug for GradHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GradHook").finish_non_exhaustive()
    }
}
