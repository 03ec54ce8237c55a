//! [`Next`]: the second argument of an `around` hook, which runs or replaces the operation.

use std::fmt;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use scoped_tls_hkt::scoped_thread_local;

use super::shim::Outcome;
use crate::context::Cx;
use crate::error::{Error, Result};
use crate::hook::table::Range;
use crate::moment::{AtOperation, Moment, MomentInfo};
use crate::run::{Body, Done, Frame, Run};

// The body of the running operation, if it captures variables such as the caller's loader. `Next`
// has no lifetime and cannot hold it.
scoped_thread_local!(static mut CAPTURING: for<'a> &'a mut (dyn FnMut(&mut Run) -> Result<()> + 'a));

/// The remaining hooks around an operation, and the operation itself. An `around` hook receives it
/// as its second argument.
///
/// An `around` hook does one of three things with it:
///
/// - [`run`](Next::run) runs the hooks further inside and the operation.
/// - [`replace`](Next::replace) runs a closure instead. The operation counts as done: the point
///   after it fires, and the counters and schedules that depend on it advance.
/// - If the hook calls neither, the operation is skipped: the point after it does not fire, and the
///   counters and schedules that depend on it do not advance, except that a skipped `epoch` counts
///   as an epoch, and a skipped `step` or `predict_step` advances
///   [`batch_idx`](crate::Counters::batch_idx). `transfer`, `pred`, `module` and `loss` cannot be
///   skipped, because the step needs their output.
///
/// The table in [`language::operations`](crate::language::operations) shows what each of these
/// means for each operation.
///
/// `around` hooks are nested calls on the stack. A trainer can have at most 500 of them in total;
/// `build` returns an error if there are more.
///
/// ```standalone_crate
/// use trainer::prelude::*;
///
/// /// Updates the parameters at every fourth batch, with the mean gradient of the four batches.
/// #[hook(around = opt_step)]
/// fn each_fourth(cx: &mut Cx<OptStep>, next: Next<OptStep>) -> Result<()> {
///     if (cx.counters().batch_idx + 1) % 4 == 0 { next.run(cx) } else { Ok(()) }
/// }
/// # fn main() {}
/// ```
pub struct Next<O> {
    /// The hooks further inside.
    remaining_hooks: Range,
    /// The id of the frame that this belongs to.
    frame: u64,
    operation: PhantomData<fn() -> O>,
    /// Makes `Next` neither `Send` nor `Sync`, because the body may be in a thread-local variable. Not
    /// a `PhantomData`, whose source rustc quotes in its message if it has the standard library's.
    _not_send: [*const (); 0],
}

impl<O: Moment> Next<O> {
    /// Returns the `next` of the hook that is being called.
    #[inline]
    pub(crate) fn from_run(run: &Run) -> Self {
        Next {
            remaining_hooks: run.dispatch.remaining_hooks,
            frame: run.dispatch.frame.id,
            operation: PhantomData,
            _not_send: [],
        }
    }

    /// Runs the hooks further inside, then the operation itself.
    ///
    /// # Errors
    ///
    /// Returns the error of a hook further inside or of the operation, or an error if this `next`
    /// was kept from an earlier call of the hook. A hook that does not return this error has
    /// handled it: the operation did not take place, and the run continues.
    #[inline]
    pub fn run(self, cx: &mut Cx<O>) -> Result<()> {
        let run = cx.run_mut();
        run.check_logged()?;
        let this_hook = run.place.hook;
        let result = if self.frame == run.dispatch.frame.id {
            run.run_remaining(self.remaining_hooks, O::INFO)
        } else {
            Err(stale(O::INFO))
        };
        run.place.hook = this_hook;
        if result.is_err() {
            run.dispatch.error_is_located = true;
        }
        result
    }

    /// Runs `body` instead of the hooks further inside and the operation itself. The operation
    /// counts as done: the point after it fires, and the counters and schedules that depend on it
    /// advance.
    ///
    /// If the operation produces an output, `body` must set it with [`set_batch`](Cx::set_batch),
    /// [`set_pred`](Cx::set_pred), [`set_output`](Cx::set_output) or [`set_loss`](Cx::set_loss). A
    /// replaced backward pass must start from [`scaled_loss`](Cx::scaled_loss).
    ///
    /// ```standalone_crate
    /// use trainer::prelude::*;
    ///
    /// /// The built-in backward pass, written as a hook.
    /// #[hook(around = backward)]
    /// fn own_backward(cx: &mut Cx<Backward>, next: Next<Backward>) -> Result<()> {
    ///     next.replace(cx, |cx| cx.backward(&cx.scaled_loss()))
    /// }
    ///
    /// /// The built-in optimizer step, written as a hook.
    /// #[hook(around = opt_step)]
    /// fn own_step(cx: &mut Cx<OptStep>, next: Next<OptStep>) -> Result<()> {
    ///     next.replace(cx, |cx| cx.optimizer()?.step())
    /// }
    /// # fn main() {}
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the error of `body`; the operation then counts as failed. Also returns an error if
    /// this `next` was kept from an earlier call of the hook.
    #[inline]
    pub fn replace<R: Outcome>(self, cx: &mut Cx<O>, body: impl FnOnce(&mut Cx<O>) -> R) -> Result<()> {
        let run = cx.run_mut();
        run.check_logged()?;
        if self.frame != run.dispatch.frame.id {
            return Err(stale(O::INFO));
        }
        // Set before `body` runs, so that a panic in `body` leaves the operation as failed.
        run.dispatch.frame.done = Done::Failed;
        let result = body(cx).outcome().map_err(Error::from);
        let run = cx.run_mut();
        let result = result.and_then(|()| run.check_logged());
        if result.is_ok() && self.frame == run.dispatch.frame.id {
            run.dispatch.frame.done = Done::Replaced;
        }
        result
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
    pub fn run_then<R: Outcome>(self, cx: &mut Cx<O>, then: impl FnOnce(&mut Cx<O>) -> R) -> Result<()> {
        let this_hook = cx.run_mut().place.hook;
        let outcome = catch_unwind(AssertUnwindSafe(|| self.run(cx)));
        let panicking_hook = std::mem::replace(&mut cx.run_mut().place.hook, this_hook);
        let second = then(cx).outcome().map_err(Error::from);
        match outcome {
            Ok(first) => first.and(second),
            Err(panic) => {
                cx.run_mut().place.hook = panicking_hook;
                resume_unwind(panic)
            }
        }
    }
}

impl<O: Moment> fmt::Debug for Next<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Next({})", O::INFO.name)
    }
}

impl Run {
    /// Runs an operation with the hooks around it, but without the points before and after it.
    ///
    /// Returns how the operation ended.
    #[inline]
    pub(crate) fn inside<O: AtOperation>(&mut self, body: Body) -> Result<Done> {
        let around = self.hooks.table.range(O::index(), self.place.phase);
        self.inside_range::<O>(around, body)
    }

    /// Does the same as [`inside`](Run::inside) for a subset of the hooks around the operation.
    #[inline]
    fn inside_range<O: AtOperation>(&mut self, around: Range, body: Body) -> Result<Done> {
        let outer = self.place;
        self.place.operation = O::INFO;
        let result = if around.is_empty() {
            body(self).map(|()| Done::Ran)
        } else {
            self.around(around, O::INFO, body)
        };
        let result = result.map_err(|error| self.locate(error));
        self.place = outer;
        result
    }

    /// Does the same as [`inside`](Run::inside) for a body that captures variables.
    pub(crate) fn inside_with<O: AtOperation>(
        &mut self,
        body: impl FnOnce(&mut Run) -> Result<()>,
    ) -> Result<Done> {
        let mut body = Some(body);
        let mut once =
            |run: &mut Run| body.take().expect("`Next::run` consumes the `Next`, so the body runs once")(run);
        CAPTURING.set(&mut once, || self.inside::<O>(|run| CAPTURING.with(|body| body(run))))
    }

    /// Does the same as [`inside_with`](Run::inside_with) for a subset of the hooks around the
    /// operation.
    pub(crate) fn inside_range_with<O: AtOperation>(
        &mut self,
        around: Range,
        mut body: impl FnMut(&mut Run) -> Result<()>,
    ) -> Result<Done> {
        CAPTURING.set(&mut body, || self.inside_range::<O>(around, |run| CAPTURING.with(|body| body(run))))
    }

    /// Runs an operation that has `around` hooks in a new frame.
    fn around(&mut self, hooks: Range, operation: &'static MomentInfo, body: Body) -> Result<Done> {
        self.dispatch.frames += 1;
        let frame = Frame { body, id: self.dispatch.frames, done: Done::Skipped, responsible: None };
        let outer = std::mem::replace(&mut self.dispatch.frame, frame);
        let place = self.place;
        let result = self.run_remaining(hooks, operation);
        // A hook may have caught a panic that left the run in another place.
        self.place = place;
        self.place.hook = None;
        let Frame { done, responsible, .. } = std::mem::replace(&mut self.dispatch.frame, outer);
        self.dispatch.responsible = responsible;
        result.map(|()| done)
    }

    /// Calls the next hook around an operation, or the body of the operation if no hook is left.
    #[inline]
    pub(crate) fn run_remaining(&mut self, mut hooks: Range, operation: &'static MomentInfo) -> Result<()> {
        if let Some(hook) = hooks.take_first() {
            self.dispatch.remaining_hooks = hooks;
            let result = self.call_one(hook, operation);
            if self.dispatch.frame.done != Done::Ran && result.is_ok() {
                self.dispatch.frame.responsible.get_or_insert(hook);
            }
            return result;
        }
        self.place.hook = None;
        self.dispatch.frame.done = Done::Failed;
        let result = (self.dispatch.frame.body)(self);
        if result.is_ok() {
            self.dispatch.frame.done = Done::Ran;
        }
        result.map_err(|error| self.locate(error))
    }
}

#[cold]
fn stale(operation: &'static MomentInfo) -> Error {
    Error::usage(format!(
        "this `next` belongs to an earlier `{}`, which has ended: use the `next` that this call of the hook received",
        operation.name
    ))
}
