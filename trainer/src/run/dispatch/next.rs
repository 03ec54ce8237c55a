//! [`Next`]: the second argument of an `around` hook, which runs, replaces or skips the operation,
//! and [`Done`]: what the hook returns.

use std::fmt;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use super::shim::{Outcome, Replaced};
use crate::error::{Error, Result};
use crate::hook::call::Loop;
use crate::hook::frame::Ending;
use crate::moment::Moment;
use crate::run::Rest;
use crate::run::context::Cx;

/// The remaining hooks around an operation, and the operation itself. An `around` hook receives a
/// `Next` as its second argument, for the duration of the call.
///
/// An `around` hook returns `Result<Done>`, which says how the operation ended. It gets the
/// [`Done`] from one of these methods:
///
/// - [`run`](Next::run) runs the inner hooks and the operation, [`run_then`](Next::run_then) also
///   runs a closure afterwards, and [`run_or`](Next::run_or) handles an error.
/// - [`replace`](Next::replace) runs a closure instead. The operation counts as done: the point
///   after it fires, and the counters and schedules that depend on it advance.
/// - [`skip`](Next::skip) skips the operation: the point after it does not fire, and the counters
///   and schedules that depend on it do not advance. There are two exceptions: a skipped `epoch`
///   counts as an epoch, and a skipped `step` or `predict_step` advances
///   [`batch_idx`](crate::Counters::batch_idx). `transfer`, `pred`, `module_forward` and `loss`
///   cannot be skipped, because the step needs their output.
///
/// The table in [`language::operations`](crate::language::operations) shows the effect of these
/// methods on each operation.
///
/// `around` hooks are nested calls on the stack. A trainer can have at most 500 of them in total;
/// `build` returns an error if there are more.
///
/// ```standalone_crate
/// use trainer::prelude::*;
///
/// /// Updates the parameters at every fourth batch, with the mean gradient of the four batches.
/// #[hook]
/// fn each_fourth(cx: &mut Cx<OptStep>, next: Next<OptStep>) -> Result<Done> {
///     if (cx.counters().batch_idx + 1) % 4 == 0 { next.run(cx) } else { Ok(next.skip()) }
/// }
/// # fn main() {}
/// ```
#[must_use = "run, replace or skip the operation"]
pub struct Next<'a, O> {
    rest: Rest<'a>,
    operation: PhantomData<fn() -> O>,
}

// Without a bound, so that a type that is not a moment is reported only once, by the definition of
// the hook.
impl<'a, O> Next<'a, O> {
    /// Returns the `next` of the hook that is called with `rest`.
    #[inline]
    pub(crate) fn new(rest: Rest<'a>) -> Self {
        Next { rest, operation: PhantomData }
    }

    /// Runs the inner hooks, then the operation itself.
    ///
    /// # Errors
    ///
    /// Returns the error of an inner hook or of the operation.
    #[inline]
    pub fn run(self, cx: &mut Cx<O>) -> Result<Done> {
        cx.run_mut().run_next(self.rest).map(|()| Done::new())
    }

    /// Skips the inner hooks and the operation itself.
    #[inline]
    pub fn skip(self) -> Done {
        self.rest.ending = Ending::Skipped;
        Done::new()
    }

    /// Runs the operation like [`run`](Next::run), and calls `handle` with its error if it fails.
    /// Unless `handle` returns an error itself, the run continues as if the operation had been
    /// [skipped](Next::skip). For `transfer`, `pred`, `module_forward` and `loss`, `handle` must
    /// set the output, and the operation then counts as done.
    ///
    /// ```standalone_crate
    /// use trainer::prelude::*;
    ///
    /// /// Skips the batches for which the forward pass or the loss fails.
    /// #[hook]
    /// fn tolerant(cx: &mut Cx<Step>, next: Next<Step>) -> Result<Done> {
    ///     next.run_or(cx, |cx, error| cx.warn(format!("skipped a batch: {error}")))
    /// }
    /// # fn main() {}
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the error of `handle`.
    pub fn run_or<R: Outcome>(
        self,
        cx: &mut Cx<O>,
        handle: impl FnOnce(&mut Cx<O>, Error) -> R,
    ) -> Result<Done> {
        let Next { rest, .. } = self;
        if let Err(error) = cx.run_mut().run_next(&mut *rest) {
            if rest.ending == Ending::Open {
                rest.ending = Ending::Skipped; // an inner hook failed before the body
            }
            handle(cx, error).outcome()?;
        }
        Ok(Done::new())
    }

    /// Runs `body` instead of the inner hooks and the operation itself. The operation counts as
    /// done: the point after it fires, and the counters and schedules that depend on it advance.
    ///
    /// If the operation produces an output, `body` must set it with [`set_batch`](Cx::set_batch),
    /// [`set_pred`](Cx::set_pred), [`set_output`](Cx::set_output) or [`set_loss`](Cx::set_loss). A
    /// replaced backward pass must start from [`scaled_loss`](Cx::scaled_loss).
    ///
    /// ```standalone_crate
    /// use trainer::prelude::*;
    ///
    /// /// The built-in backward pass, written as a hook.
    /// #[hook]
    /// fn own_backward(cx: &mut Cx<Backward>, next: Next<Backward>) -> Result<Done> {
    ///     next.replace(cx, |cx| cx.backward(&cx.scaled_loss()))
    /// }
    ///
    /// /// The built-in optimizer step, written as a hook.
    /// #[hook]
    /// fn own_step(cx: &mut Cx<OptStep>, next: Next<OptStep>) -> Result<Done> {
    ///     next.replace(cx, |cx| cx.optimizer_mut()?.step())
    /// }
    /// # fn main() {}
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the error of `body`; the operation then counts as failed.
    #[inline]
    pub fn replace<R: Replaced>(self, cx: &mut Cx<O>, body: impl FnOnce(&mut Cx<O>) -> R) -> Result<Done> {
        cx.run_mut().check_complaint()?;
        // Set before `body` runs, so that a panic in `body` leaves the operation as failed.
        self.rest.ending = Ending::Failed;
        body(cx).replaced()?;
        cx.run_mut().check_complaint()?;
        self.rest.ending = Ending::Replaced;
        Ok(Done::new())
    }

    /// Runs the operation like [`run`](Next::run), and then calls `then`, even if the operation
    /// returned an error or panicked.
    ///
    /// Use it to restore what the hook changed for the duration of the operation. A panic resumes
    /// after `then`. In a program built with `panic = "abort"`, a panic ends the process and `then`
    /// does not run.
    ///
    /// # Errors
    ///
    /// Returns the error of the operation, or if it succeeded, the error of `then`.
    pub fn run_then<R: Outcome>(self, cx: &mut Cx<O>, then: impl FnOnce(&mut Cx<O>) -> R) -> Result<Done> {
        let this_hook = cx.run_mut().at.place.hook;
        let outcome = catch_unwind(AssertUnwindSafe(|| self.run(cx)));
        let panicking_hook = std::mem::replace(&mut cx.run_mut().at.place.hook, this_hook);
        let second = then(cx).outcome().map_err(Error::from);
        match outcome {
            Ok(first) => first.and_then(|done| second.map(|()| done)),
            Err(panic) => {
                cx.run_mut().at.place.hook = panicking_hook;
                resume_unwind(panic)
            }
        }
    }
}

impl<O: Moment> fmt::Debug for Next<'_, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Next({})", O::INFO.name)
    }
}

/// The return value of a hook around an operation: proof that the hook has decided how the
/// operation ends. Only the methods of [`Next`] create it.
///
/// It belongs to one call of the hook, so the value of a hook cannot store it:
///
/// ```compile_fail,E0277
/// use trainer::prelude::*;
///
/// struct Keeps(Option<Done>);
///
/// #[hook]
/// impl Keeps {
///     fn after_step(&mut self, _: &mut Cx<AfterStep>) {}
/// }
/// # fn main() {}
/// ```
#[must_use = "return it from the hook"]
pub struct Done(PhantomData<*const ()>); // not `Send`: it cannot be kept in the value of a hook

impl Done {
    #[inline]
    fn new() -> Self {
        Done(PhantomData)
    }
}

impl fmt::Debug for Done {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Done")
    }
}
