//! [`Next`]: what a hook around an operation goes around.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use scoped_tls_hkt::scoped_thread_local;

use crate::Cx;
use crate::error::{Error, Result};
use crate::hook::definition::Hook;
use crate::hook::shim::Outcome;
use crate::hook::table::Range;
use crate::moment::{AtOperation, Moment, MomentInfo};
use crate::run::Run;

/// How many hooks of a trainer may go around operations, so that all of them fit on the stack of a thread (2 MiB unless it was
/// given more) even when every operation they go around lies within another: each takes 0.8 to 1.4 KB in an unoptimized build.
pub(crate) const MAX_AROUND: usize = 500;

/// Reports hooks around operations if there are more than the stack has room for.
pub(crate) fn check_around(hooks: &[Hook], mistakes: &mut Vec<String>) {
    let mut counts: BTreeMap<usize, (usize, &'static MomentInfo)> = BTreeMap::new();
    for Hook { definition, .. } in hooks.iter().filter(|hook| hook.definition.goes_around()) {
        counts.entry((definition.row)()).or_insert((0, definition.moment)).0 += 1;
    }
    let sum: usize = counts.values().map(|(count, _)| count).sum();
    if let Some((most, operation)) =
        counts.values().max_by_key(|(count, _)| count).filter(|_| sum > MAX_AROUND)
    {
        mistakes.push(format!(
            "{sum} hooks go around operations, {most} of them around `{}`, and the stack has room for {MAX_AROUND}: let one hook do the \
             work of several, or place them at the points before and after the operation",
            operation.path()
        ));
    }
}

/// What an operation with hooks around it does in the end.
pub(crate) type Body = fn(&mut Run) -> Result<()>;

// A body that captures something, a loader of the caller's, say, which a `Next` without a lifetime cannot hold: it lies
// here while its operation runs.
scoped_thread_local!(static mut CAPTURING: for<'a> &'a mut (dyn FnMut(&mut Run) -> Result<()> + 'a));

/// What became of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Done {
    /// No hook ran or replaced it, or a hook inside failed before it began.
    Skipped,
    /// Its body, or its replacement, failed, and a hook around it handled the error.
    Failed,
    /// A hook replaced its body.
    Replaced,
    /// Its body ran.
    Ran,
}

impl Done {
    /// Whether the point after it fires and what counts it advances.
    #[inline]
    pub(crate) fn took_place(self) -> bool {
        matches!(self, Done::Replaced | Done::Ran)
    }
}

/// The operation that the hooks being called go around.
#[derive(Clone, Copy)]
pub(crate) struct Frame {
    body: Body,
    /// Tells this time that the operation runs from every other.
    id: u64,
    /// What became of it so far.
    done: Done,
    /// The entry of the hook that skipped it, replaced it or handled its error: the innermost one.
    responsible: Option<u32>,
}

impl Default for Frame {
    fn default() -> Self {
        Frame { body: |_| Ok(()), id: 0, done: Done::Skipped, responsible: None }
    }
}

/// The rest of an operation: the hooks further inside, then the operation itself.
///
/// A hook around an operation does one of three things with it:
///
/// - [`run`](Next::run) runs the hooks further inside and the operation.
/// - [`replace`](Next::replace) runs a closure in their stead. The operation took place: the point after it
///   fires, and counters and schedules advance.
/// - Without either the operation is skipped: the point after it does not fire, and what counts it does
///   not advance (a batch and an epoch that have begun are counted as begun). `transfer`, `pred` and `loss`
///   cannot be skipped, because the step continues with what they make.
///
/// [`language::operations`](crate::language::operations) has a table of what each of these means for each
/// operation.
///
/// Hooks around an operation are nested calls on the stack. A trainer takes at most 500 of them, counted over all operations;
/// `build` refuses more.
///
/// ```standalone_crate
/// use trainer::prelude::*;
///
/// /// Updates the parameters with each fourth batch, by the mean over the four.
/// #[hook(around = opt_step)]
/// fn each_fourth(cx: &mut Cx<OptStep>, next: Next<OptStep>) -> Result<()> {
///     if (cx.counters().batch_idx + 1) % 4 == 0 { next.run(cx) } else { Ok(()) }
/// }
/// # fn main() {}
/// ```
pub struct Next<O> {
    /// The hooks further inside.
    rest: Range,
    /// Of its frame.
    id: u64,
    of: PhantomData<fn() -> O>,
    /// The operation may lie in a thread-local.
    on_this_thread: PhantomData<*const ()>,
}

impl<O: Moment> Next<O> {
    /// What comes after the hook that is being called.
    #[inline]
    pub(crate) fn of(run: &Run) -> Self {
        Next {
            rest: run.dispatch.remaining_hooks,
            id: run.dispatch.frame.id,
            of: PhantomData,
            on_this_thread: PhantomData,
        }
    }

    /// Runs the hooks further inside, then the operation itself.
    ///
    /// # Errors
    ///
    /// What went wrong inside; the run is as it was when the error left the operation. A hook that does not
    /// pass it on has dealt with it: the operation did not take place, and the run goes on.
    #[inline]
    pub fn run(self, cx: &mut Cx<O>) -> Result<()> {
        let run = cx.run_mut();
        run.logged()?;
        let running = run.dispatch.current_hook;
        let result =
            if self.id == run.dispatch.frame.id { run.go_on(self.rest, O::INFO) } else { Err(kept(O::INFO)) };
        run.dispatch.current_hook = running;
        if result.is_err() {
            run.dispatch.error_is_located = true;
        }
        result
    }

    /// Runs `body` instead of the hooks further inside and the operation itself, which thereby took place:
    /// the point after it fires, and counters and schedules advance.
    ///
    /// What the operation makes, `body` sets: [`set_batch`](Cx::set_batch), [`set_pred`](Cx::set_pred),
    /// [`set_loss`](Cx::set_loss). A backward pass starts from [`scaled_loss`](Cx::scaled_loss).
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
    /// Returns the error of `body`. The operation then failed, as one whose own body fails.
    #[inline]
    pub fn replace<R: Outcome>(self, cx: &mut Cx<O>, body: impl FnOnce(&mut Cx<O>) -> R) -> Result<()> {
        let run = cx.run_mut();
        run.logged()?;
        if self.id != run.dispatch.frame.id {
            return Err(kept(O::INFO));
        }
        // Until it has returned: a panic in there, too, leaves a failed operation.
        run.dispatch.frame.done = Done::Failed;
        let result = body(cx).outcome().map_err(Error::from);
        let run = cx.run_mut();
        let result = result.and_then(|()| run.logged());
        if result.is_ok() && self.id == run.dispatch.frame.id {
            run.dispatch.frame.done = Done::Replaced;
        }
        result
    }

    /// Runs the operation, and then this, whatever happened: after success, an error and a panic alike.
    ///
    /// For what was changed for the operation and is to be put back. Of two errors the operation's is given
    /// back; a panic goes on. In a program built with `panic = "abort"` a panic ends the process, and the second part does not run.
    ///
    /// # Errors
    ///
    /// As for [`run`](Next::run), and those of the second part.
    pub fn run_then<R: Outcome>(self, cx: &mut Cx<O>, then: impl FnOnce(&mut Cx<O>) -> R) -> Result<()> {
        let this = cx.run_mut().dispatch.current_hook;
        let outcome = catch_unwind(AssertUnwindSafe(|| self.run(cx)));
        let culprit = std::mem::replace(&mut cx.run_mut().dispatch.current_hook, this);
        let second = then(cx).outcome().map_err(Error::from);
        match outcome {
            Ok(first) => first.and(second),
            Err(panic) => {
                cx.run_mut().dispatch.current_hook = culprit;
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
    /// Runs the body of an operation within the hooks around it, without the points before and after it.
    ///
    /// Returns what became of it.
    #[inline]
    pub(crate) fn inside<O: AtOperation>(&mut self, body: Body) -> Result<Done> {
        let outer = std::mem::replace(&mut self.dispatch.operation, O::INFO);
        let around = self.hooks.table.range(O::index(), self.progress.phase);
        let result = if around.is_empty() {
            body(self).map(|()| Done::Ran)
        } else {
            self.around(around, O::INFO, body)
        };
        let result = result.map_err(|error| self.locate(error));
        self.dispatch.operation = outer;
        result
    }

    /// As [`inside`](Run::inside), for a body that captures something.
    pub(crate) fn inside_with<O: AtOperation>(
        &mut self,
        body: impl FnOnce(&mut Run) -> Result<()>,
    ) -> Result<Done> {
        let mut body = Some(body);
        let mut once = |run: &mut Run| body.take().expect("a `Next` is consumed")(run);
        CAPTURING.set(&mut once, || self.inside::<O>(|run| CAPTURING.with(|body| body(run))))
    }

    fn around(&mut self, hooks: Range, operation: &'static MomentInfo, body: Body) -> Result<Done> {
        self.dispatch.frames += 1;
        let frame = Frame { body, id: self.dispatch.frames, done: Done::Skipped, responsible: None };
        let outer = std::mem::replace(&mut self.dispatch.frame, frame);
        let (phase, custom_scopes) = (self.progress.phase, self.dispatch.custom_scopes.len());
        let result = self.go_on(hooks, operation);
        // As they were, also if a hook caught a panic that left them behind.
        self.progress.phase = phase;
        if self.dispatch.custom_scopes.len() > custom_scopes {
            self.dispatch.custom_scopes.truncate(custom_scopes);
        }
        self.dispatch.current_hook = None;
        let Frame { done, responsible, .. } = std::mem::replace(&mut self.dispatch.frame, outer);
        self.dispatch.responsible = responsible;
        result.map(|()| done)
    }

    /// Calls the next of the hooks around an operation, or its body if there is none.
    #[inline]
    fn go_on(&mut self, mut hooks: Range, operation: &'static MomentInfo) -> Result<()> {
        if let Some(hook) = hooks.take_first() {
            self.dispatch.remaining_hooks = hooks;
            let result = self.call_one(hook, operation);
            if self.dispatch.frame.done != Done::Ran && result.is_ok() {
                self.dispatch.frame.responsible.get_or_insert(hook);
            }
            return result;
        }
        self.dispatch.current_hook = None;
        self.dispatch.frame.done = Done::Failed;
        let result = (self.dispatch.frame.body)(self);
        if result.is_ok() {
            self.dispatch.frame.done = Done::Ran;
        }
        result.map_err(|error| self.locate(error))
    }
}

#[cold]
fn kept(operation: &'static MomentInfo) -> Error {
    Error::usage(format!("this `next` was kept from an earlier `{}`, which is over", operation.name))
}
