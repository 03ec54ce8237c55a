//! How the table calls what the user wrote: with the right context, its value lent out, its result translated.

use super::definition::{HookResult, Hooks};
use crate::Cx;
use crate::error::BoxError;
use crate::moment::Moment;
use crate::next::Next;
use crate::run::{Run, Slot};

/// The context of a hook at `At`, for the type of context that the user's function takes.
pub fn context_at<At, C: ContextOf<At>>(run: &mut Run) -> &mut C {
    C::of_run(run)
}

/// The one type of context that a hook at `At` can take.
#[diagnostic::on_unimplemented(
    message = "a hook at `{At}` takes `&mut Cx<{At}>`, not `&mut {Self}`",
    label = "expected `{At}`"
)]
pub trait ContextOf<At> {
    /// The run, seen so.
    fn of_run(run: &mut Run) -> &mut Self;
}

#[diagnostic::do_not_recommend]
impl<At: Moment> ContextOf<At> for Cx<At> {
    #[inline]
    fn of_run(run: &mut Run) -> &mut Self {
        Cx::from_run(run)
    }
}

/// The `next` of a hook around `At`, for the type of it that the user's function takes.
#[inline]
pub fn next_at<At, N: NextOf<At>>(run: &Run) -> N {
    N::of_run(run)
}

/// Goes on without the hook, whose turn it is not.
#[inline]
pub fn pass_on<At: Moment>(run: &mut Run) -> HookResult {
    Next::<At>::from_run(run).run(Cx::from_run(run)).map_err(Into::into)
}

/// The one type of `next` that a hook around `At` can take.
#[diagnostic::on_unimplemented(
    message = "a hook around `{At}` takes `Next<{At}>`, not `{Self}`",
    label = "expected `{At}`"
)]
pub trait NextOf<At> {
    /// What comes after the hook that is being called.
    fn of_run(run: &Run) -> Self;
}

#[diagnostic::do_not_recommend]
impl<At: Moment> NextOf<At> for Next<At> {
    #[inline]
    fn of_run(run: &Run) -> Self {
        Next::from_run(run)
    }
}

/// What a hook may return.
#[diagnostic::on_unimplemented(
    message = "a hook returns `()` or a `Result<(), _>` with any error, not `{Self}`",
    label = "cannot be returned by a hook"
)]
pub trait Outcome {
    /// As the table wants it.
    fn outcome(self) -> HookResult;
}

#[diagnostic::do_not_recommend]
impl Outcome for () {
    #[inline]
    fn outcome(self) -> HookResult {
        Ok(())
    }
}

// Without `do_not_recommend`, so that it is the error type that is reported.
impl<E: HookFailure> Outcome for Result<(), E> {
    #[inline]
    fn outcome(self) -> HookResult {
        self.map_err(HookFailure::boxed)
    }
}

/// An error that a hook may return.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an error that a hook can return",
    label = "not an error that is `Send + Sync`",
    note = "implement `std::error::Error` for it, and make it `Send + Sync + 'static`; or return `trainer::Result<()>`"
)]
pub trait HookFailure {
    /// As the table wants it.
    fn boxed(self) -> BoxError;
}

#[diagnostic::do_not_recommend]
impl<E: Into<BoxError>> HookFailure for E {
    #[inline]
    fn boxed(self) -> BoxError {
        self.into()
    }
}

/// What the user's function returned, as the table wants it.
#[inline]
pub fn outcome<R: Outcome>(returned: R) -> HookResult {
    returned.outcome()
}

/// A hook's value while it is out of its place, so that it and the run can be borrowed side by side.
struct Loan<'a> {
    run: &'a mut Run,
    slot: usize,
    value: Option<Slot>,
}

impl Loan<'_> {
    #[inline]
    fn give_back(&mut self) {
        // What is there is `None`: forgetting it saves the code that would drop a value.
        let none = std::mem::replace(&mut self.run.hooks.instances[self.slot].value, self.value.take());
        std::mem::forget(none);
    }
}

impl Drop for Loan<'_> {
    #[cold]
    fn drop(&mut self) {
        self.give_back();
    }
}

/// Calls a method of a block, by its number.
pub fn call_nth<H: Hooks, const NTH: usize>(run: &mut Run, slot: u32) -> HookResult {
    lend(run, slot, H::__call::<NTH>)
}

/// Lends a hook's value to one of its methods, and takes it back on every way out.
#[inline]
pub(crate) fn lend<H: 'static>(
    run: &mut Run,
    slot: u32,
    method: impl FnOnce(&mut H, &mut Run) -> HookResult,
) -> HookResult {
    let slot = slot as usize;
    let value = run.hooks.instances[slot].value.take();
    let mut loan = Loan { run, slot, value };
    // Without closures: this is compiled once for each method.
    let hook = match &mut loan.value {
        Some(value) => value.downcast_mut::<H>(),
        None => None,
    };
    let Some(hook) = hook else { return Err(reached_itself::<H>()) };
    let result = method(hook, loan.run);
    loan.give_back();
    std::mem::forget(loan); // its drop is for panics
    result
}

#[cold]
fn reached_itself<H>() -> BoxError {
    format!("`{}` is running already, and cannot be reached from itself", std::any::type_name::<H>()).into()
}
