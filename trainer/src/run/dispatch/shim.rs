//! Calls of user hooks from the dispatch table: the context, the borrow of the value, and the
//! conversion of the result.

use std::any::{Any, TypeId, type_name};
use std::marker::PhantomData;

use super::{Done, Next};
use crate::checkpoint::Slot;
use crate::distributed::main_only::MainOnlyGuard;
use crate::error::BoxError;
use crate::hook::call::Loop;
use crate::hook::constraint::OrderTarget;
use crate::hook::definition::{AroundShim, HookResult, PointShim};
use crate::hook::selected::Selected;
use crate::moment::{AtOperation, AtPoint, Moment};
use crate::run::context::Cx;
use crate::run::dispatch::registration::{Definition, Definitions, Hooks};
use crate::run::{Place, Rest, Run, Shim};

/// The type of a hook's context: `Cx<AfterStep>`, or an alias of it.
#[diagnostic::on_unimplemented(
    message = "a hook takes its context, `&mut Cx<…>` or `&Cx<…>`, not `{Self}`",
    label = "expected `Cx<…>`"
)]
pub trait HookContext {
    /// The moment of the hook.
    type At;

    /// Returns the context that borrows the run.
    fn of_run(run: &mut Run) -> &mut Self;

    /// Returns the context that only observes the run.
    fn of_shared(run: &Run) -> &Self;
}

// Without a bound, so that a type that is not a moment is reported only once, by the definition of
// the hook.
#[diagnostic::do_not_recommend]
impl<P> HookContext for Cx<P> {
    type At = P;

    #[inline]
    fn of_run(run: &mut Run) -> &mut Self {
        Cx::from_run(run)
    }

    #[inline]
    fn of_shared(run: &Run) -> &Self {
        Cx::from_shared(run)
    }
}

/// Defines a hook with the context `C`, at a point.
pub fn define_at<'a, C: HookContext>(
    hooks: &'a mut Definitions,
    name: &'static str,
    position: (u32, u32),
    docs: &'static str,
    call: PointShim<Run>,
) -> Definition<'a, C::At>
where
    C::At: AtPoint,
{
    hooks.add(name, position, docs, Shim::Point(call))
}

/// Defines a hook with the context `C`, around an operation.
pub fn define_around<'a, C: HookContext>(
    hooks: &'a mut Definitions,
    name: &'static str,
    position: (u32, u32),
    docs: &'static str,
    call: AroundShim<Run>,
) -> Definition<'a, C::At>
where
    C::At: AtOperation,
{
    hooks.add(name, position, docs, Shim::Around(call))
}

/// An argument of a method that is not a hook. If the type of the argument is a context, under
/// whatever name, an inherent method of this type takes precedence over the method of
/// [`NoContext`], and does not compile.
#[derive(Debug)]
pub struct Probe<T>(PhantomData<T>);

impl<T> Probe<T> {
    /// Returns the probe of an argument.
    #[must_use]
    pub const fn of_argument() -> Self {
        Probe(PhantomData)
    }
}

/// Implements the checks for a form of a context.
macro_rules! refuse {
    ($($context:ty),+) => {$(
        impl<P> Probe<$context> {
            /// The first argument of a method is a context.
            pub fn is_not_first(&self)
            where
                Cx<P>: FirstOfHook,
            {
            }

            /// A later argument of a method is a context.
            pub fn is_not_later(&self)
            where
                Cx<P>: LaterOfHook,
            {
            }
        }
    )+};
}

refuse!(Cx<P>, &Cx<P>, &mut Cx<P>);

/// Never implemented: only explains why a method of a hook block does not compile.
#[diagnostic::on_unimplemented(
    message = "this method takes a context, `{Self}`, but it is not a hook, so the trainer would never call it",
    label = "a context",
    note = "to make the method a hook, write the type of its argument as `&Cx<…>` or `&mut Cx<…>`, with this name",
    note = "to make it a helper, move it to an `impl` block without `#[hook]`"
)]
pub trait FirstOfHook {}

/// Never implemented: only explains why a method of a hook block does not compile.
#[diagnostic::on_unimplemented(
    message = "this method takes a context, `{Self}`, but it is not a hook, so the trainer would never call it",
    label = "a context",
    note = "to make the method a hook, remove its other arguments: a hook takes only its context",
    note = "to make it a helper, move it to an `impl` block without `#[hook]`"
)]
pub trait LaterOfHook {}

/// The checks of a [`Probe`] whose type is not a context.
pub trait NoContext {
    /// The type is not a context.
    fn is_not_first(&self) {}
    /// The type is not a context.
    fn is_not_later(&self) {}
}

impl<T> NoContext for Probe<T> {}

/// Returns the context of a hook that may change training, as the type that the user's function
/// takes.
#[inline]
pub fn lent<C: HookContext>(run: &mut Run) -> &mut C {
    C::of_run(run)
}

/// Returns the context of a hook that only observes, as the type that the user's function takes.
#[inline]
pub fn observed<C: HookContext>(run: &mut Run) -> &C {
    C::of_shared(run)
}

/// Returns whether a hook with `when` runs. Takes a function pointer, so that rustc reports the
/// expected signature and does not suggest a closure.
#[inline]
pub fn holds<C>(context: &C, condition: fn(&C) -> bool) -> bool {
    condition(context)
}

/// Returns whether the hook that is being called is due. Its key `every` counts batches, optimizer
/// steps, epochs or records.
#[inline]
pub fn is_due(run: &Run) -> bool {
    run.is_due()
}

/// If the current hook runs on rank 0 only, marks the thread as running such a hook.
#[must_use]
pub fn main_only_guard(run: &Run) -> Option<MainOnlyGuard> {
    let hook = run.at.place.hook.map(|hook| run.hooks.table.hook(hook));
    hook.filter(|hook| hook.definition.main_only).map(|_| MainOnlyGuard::begin())
}

/// Returns the `next` of a hook with this context, as the type that the user's function takes.
#[inline]
pub fn next_of<'a, C: HookContext, N: NextOf<'a, C::At>>(_: &C, rest: Rest<'a>) -> N {
    N::of_rest(rest)
}

/// Skips a hook whose `every` is not due: runs the remaining hooks and the operation.
#[inline]
pub fn pass_on(run: &mut Run, rest: Rest<'_>) -> HookResult {
    run.run_next(rest).map_err(Into::into)
}

/// The type of the argument `next` of a hook around `At`.
#[diagnostic::on_unimplemented(
    message = "a hook around `{At}` takes `Next<{At}>`, not `{Self}`",
    label = "expected `{At}`"
)]
pub trait NextOf<'a, At> {
    /// Returns the `next` of the hook that is called with `rest`.
    fn of_rest(rest: Rest<'a>) -> Self;
}

#[diagnostic::do_not_recommend]
impl<'a, At> NextOf<'a, At> for Next<'a, At> {
    #[inline]
    fn of_rest(rest: Rest<'a>) -> Self {
        Next::new(rest)
    }
}

/// A type that the closure of [`Next::replace`] can return.
#[diagnostic::on_unimplemented(
    message = "the closure that replaces an operation returns `()` or a `Result<(), _>` with any error, not `{Self}`",
    label = "the closure cannot return this type",
    note = "it sets the output of the operation: `cx.set_output(…)?`, `cx.set_pred(…)?`, `cx.set_batch(…)?` or `cx.set_loss(…)`",
    note = "a hook that runs the operation itself returns `next.run(cx)`"
)]
pub trait Replaced {
    /// Converts the value to the result of the replacement.
    fn replaced(self) -> HookResult;
}

#[diagnostic::do_not_recommend]
impl<R: Outcome> Replaced for R {
    #[inline]
    fn replaced(self) -> HookResult {
        self.outcome()
    }
}

/// A type that a hook can return.
#[diagnostic::on_unimplemented(
    message = "a hook returns `()` or a `Result<(), _>` with any error, not `{Self}`",
    label = "cannot be returned by a hook"
)]
pub trait Outcome {
    /// Converts the value to the result that the dispatch table expects.
    fn outcome(self) -> HookResult;
}

#[diagnostic::do_not_recommend]
impl Outcome for () {
    #[inline]
    fn outcome(self) -> HookResult {
        Ok(())
    }
}

// Without `do_not_recommend`, so that rustc reports the error type.
impl<E: HookFailure> Outcome for Result<(), E> {
    #[inline]
    fn outcome(self) -> HookResult {
        self.map_err(HookFailure::boxed)
    }
}

/// A type that a hook around an operation can return.
#[diagnostic::on_unimplemented(
    message = "a hook around an operation returns how the operation ended, `Result<Done>`, not `{Self}`",
    label = "expected `Result<Done>`",
    note = "a `Done` comes from `next.run(cx)`, `next.run_then(cx, …)`, `next.run_or(cx, …)`, `next.replace(cx, …)` or `next.skip()`"
)]
pub trait AroundOutcome {
    /// Converts the value to the result that the dispatch table expects.
    fn outcome(self) -> HookResult;
}

#[diagnostic::do_not_recommend]
impl<E: HookFailure> AroundOutcome for Result<Done, E> {
    #[inline]
    fn outcome(self) -> HookResult {
        self.map(drop).map_err(HookFailure::boxed)
    }
}

/// An error type that a hook can return.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an error that a hook can return",
    label = "not an error that is `Send + Sync`",
    note = "implement `std::error::Error` for it, and make it `Send + Sync + 'static`; or return `trainer::Result<()>`"
)]
pub trait HookFailure {
    /// Boxes the error.
    fn boxed(self) -> BoxError;
}

#[diagnostic::do_not_recommend]
impl<E: Into<BoxError>> HookFailure for E {
    #[inline]
    fn boxed(self) -> BoxError {
        self.into()
    }
}

/// Converts the return value of the user's function.
#[inline]
pub fn outcome<R: Outcome>(returned: R) -> HookResult {
    returned.outcome()
}

/// Converts the return value of the user's function around an operation.
#[inline]
pub fn around_outcome<R: AroundOutcome>(returned: R) -> HookResult {
    returned.outcome()
}

/// The value of a hook, moved out of the run so that the value and the run can both be borrowed
/// mutably. Dropping the loan returns the value to the run, even after a panic.
struct Loan<'a> {
    run: &'a mut Run,
    slot: usize,
    value: Option<Slot>,
}

impl<'a> Loan<'a> {
    #[inline]
    fn new(run: &'a mut Run, slot: u32) -> Self {
        let slot = slot as usize;
        let value = run.hooks.instances[slot].value.take();
        Loan { run, slot, value }
    }

    #[inline]
    fn give_back(&mut self) {
        // The old content is `None`: forgetting it avoids generating drop code.
        let none = std::mem::replace(&mut self.run.hooks.instances[self.slot].value, self.value.take());
        std::mem::forget(none);
    }

    /// Ends the loan after a call that did not panic.
    #[inline]
    fn end(mut self) {
        self.give_back();
        std::mem::forget(self);
    }
}

impl Drop for Loan<'_> {
    #[cold]
    fn drop(&mut self) {
        self.give_back();
    }
}

/// The value of a hook during a call; `None` if another call has borrowed it.
pub(crate) type Lent<'a> = Option<&'a mut (dyn Any + Send)>;

/// Calls the hook method at index `NTH` in the `#[hook]` block.
pub fn call_nth<H: Hooks<B>, B, const NTH: usize>(run: &mut Run, slot: u32) -> HookResult {
    lend(run, slot, NTH, |value, nth, run| match lent_as::<H>(value) {
        Some(value) => value.__call(nth, run),
        None => Err(already_borrowed(run.at.place, type_name::<H>())),
    })
}

/// Calls the hook method at index `NTH` in the `#[hook]` block, which runs around an operation.
pub fn call_around_nth<H: Hooks<B>, B, const NTH: usize>(
    run: &mut Run,
    slot: u32,
    rest: Rest<'_>,
) -> HookResult {
    let mut loan = Loan::new(run, slot);
    let result = match lent_as::<H>(loan.value.as_deref_mut()) {
        Some(value) => value.__call_around(NTH, loan.run, rest),
        None => Err(already_borrowed(loan.run.at.place, type_name::<H>())),
    };
    loan.end();
    result
}

/// Returns the options that the hook method at index `NTH` in the `#[hook]` block reads from the
/// value.
pub fn selected_by_nth<H: Hooks<B>, B, const NTH: usize>(value: &(dyn Any + Send)) -> Selected {
    value.downcast_ref::<H>().map_or_else(Selected::all, |value| value.__selected(NTH))
}

/// Takes a hook's value out of the run, calls one of its methods with it, and puts it back, even
/// after a panic. Not generic, because each method of a user has a function that calls it.
#[inline]
pub(crate) fn lend(
    run: &mut Run,
    slot: u32,
    nth: usize,
    call: fn(Lent<'_>, usize, &mut Run) -> HookResult,
) -> HookResult {
    let mut loan = Loan::new(run, slot);
    let result = call(loan.value.as_deref_mut(), nth, loan.run);
    loan.end();
    result
}

/// Returns a lent value as the type that it has; `None` if another call has borrowed the value.
#[inline]
pub(crate) fn lent_as<H: 'static>(value: Lent<'_>) -> Option<&mut H> {
    value.and_then(|value| value.downcast_mut())
}

/// The error of a hook whose value another call has borrowed.
#[cold]
pub(crate) fn already_borrowed(place: Place, name: &str) -> BoxError {
    let is_at_module = std::ptr::eq(place.operation, crate::lifecycle::ModuleForward::INFO);
    let help = if is_at_module {
        "; its modules are nested: limit its methods with `of` to modules that are not nested, or use a function"
    } else {
        ""
    };
    format!(
        "a method of `{name}` is already running and borrows its value, so no other method of that value can run at the same time{help}"
    )
    .into()
}

/// Returns the target of an ordering constraint, such as `before`, that names a hook function.
#[must_use]
pub const fn target_fn<F: HookFn<M>, M>(_: &F) -> OrderTarget {
    OrderTarget { id: TypeId::of::<F>(), is_set: false }
}

/// A function that can be a hook.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a hook",
    label = "not a hook",
    note = "`before` and `after` take the path of a function with `#[hook]`, of a type with a `#[hook] impl` block, or of a `HookSet`"
)]
pub trait HookFn<M>: 'static {}

#[diagnostic::do_not_recommend]
impl<F, P: Moment, R: Outcome> HookFn<(P, R)> for F where F: Fn(&mut Cx<P>) -> R + 'static {}

#[diagnostic::do_not_recommend]
impl<F, P: Moment, R: Outcome> HookFn<(P, &'static P, R)> for F where F: Fn(&Cx<P>) -> R + 'static {}

#[diagnostic::do_not_recommend]
impl<F, P: Moment, R: AroundOutcome> HookFn<(P, Next<'static, P>, R)> for F where
    F: Fn(&mut Cx<P>, Next<'_, P>) -> R + 'static
{
}
