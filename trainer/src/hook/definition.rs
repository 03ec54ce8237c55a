//! What the expansion of `#[hook]` says about a hook, and how its function is called.

use std::borrow::Cow;
use std::num::NonZeroU32;

use super::discovery::crate_of;
use crate::Cx;
use crate::error::BoxError;
use crate::moment::{AtPoint, Counted, Moment, MomentInfo, ReachedIn, Unit};
use crate::phase::{Phase, PhaseMarker, PhaseSet};
use crate::run::{Run, Slot};

/// What a hook gives back: thin enough for two registers.
pub(crate) type HookResult = Result<(), BoxError>;

/// How the table calls a hook: with the run, and the place of its value if it has one.
pub(crate) type Shim = fn(&mut Run, u32) -> HookResult;

/// Where a hook was written.
#[derive(Clone, Debug)]
pub struct Origin {
    /// The module that it stands in; empty for a closure.
    pub module: &'static str,
    /// The path of the function, or of the type whose method it is; the name of a closure.
    pub path: Cow<'static, str>,
    /// The name of the method.
    pub method: Option<&'static str>,
    /// The version of its package.
    pub version: Option<&'static str>,
    /// The file, as rustc saw it.
    pub file: &'static str,
    /// The line of its name.
    pub line: u32,
    /// The first line of its doc comment.
    pub docs: &'static str,
}

impl Origin {
    /// The crate that it is part of; empty for a closure.
    pub(crate) fn krate(&self) -> &'static str {
        crate_of(self.module)
    }

    /// `my_crate::clip`, `my_crate::GradientMonitor::after_step`.
    pub(crate) fn name(&self) -> String {
        match self.method {
            None => self.path.to_string(),
            Some(method) => format!("{}::{method}", self.path),
        }
    }

    /// The order of hooks that nothing else orders.
    pub(crate) fn rank(&self) -> impl Ord + '_ {
        (self.krate(), &self.path, self.method, self.file, self.line)
    }
}

/// Everything that is known about a hook when it is compiled.
#[derive(Clone, Debug)]
pub struct HookDef {
    pub(crate) origin: Origin,
    pub(crate) ord: i32,
    pub(crate) moment: &'static MomentInfo,
    /// The row of its moment in the dispatch table.
    pub(crate) row: fn() -> usize,
    /// The phases that it asked for; none means all.
    pub(crate) only: PhaseSet,
    pub(crate) every: Option<NonZeroU32>,
    pub(crate) call: Shim,
}

impl HookDef {
    /// A hook at the point `At`.
    #[must_use]
    pub const fn new<At: AtPoint>(origin: Origin, ord: i32, call: Shim) -> Self {
        HookDef { origin, ord, moment: At::INFO, row: At::index, only: PhaseSet::NONE, every: None, call }
    }

    /// Only in this phase, and others that are named so: [`phase_of`].
    #[must_use]
    pub const fn only(mut self, phase: Phase) -> Self {
        self.only = self.only.with(phase);
        self
    }

    /// Only each n-th time: [`every_of`]. The shim asks [`due`]; here it is said.
    #[must_use]
    pub const fn every(mut self, n: u32) -> Self {
        self.every = NonZeroU32::new(n);
        self
    }

    /// The phases in which it runs.
    pub(crate) fn phases(&self) -> PhaseSet {
        if self.only == PhaseSet::NONE { self.moment.phases } else { self.only }
    }
}

/// One hook of a trainer.
#[derive(Clone, Debug)]
pub(crate) struct Hook {
    pub(crate) definition: HookDef,
    /// The value that it is called with, by its place among the run's instances; 0 if it has none.
    pub(crate) slot: u32,
}

/// A phase that reaches `At`.
#[must_use]
pub const fn phase_of<At: ReachedIn<Ph>, Ph: PhaseMarker>() -> Phase {
    Ph::PHASE
}

/// A count at a moment that is counted.
#[must_use]
pub const fn every_of<At: Counted>(n: u32) -> u32 {
    n
}

/// A type with a block of hooks: what `#[hook] impl MyType { … }` makes of it.
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no hooks",
    label = "not a hook",
    note = "a type becomes one with `#[hook]` on an `impl` block of its: `#[hook] impl {Self} {{ fn after_step(&mut self, cx: &mut Cx<AfterStep>) {{ … }} }}`"
)]
pub trait Hooks: Send + 'static {
    /// Its hooks, in the order in which they are written.
    #[doc(hidden)]
    const HOOKS: &'static [HookDef];
}

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
        Cx::of(run)
    }
}

/// What a hook may return.
#[diagnostic::on_unimplemented(
    message = "a hook returns `()` or `Result<(), E>`, not `{Self}`",
    label = "cannot be returned by a hook",
    note = "`E` is any error that is `Send + Sync`: anything that converts into `Box<dyn Error + Send + Sync>`"
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

#[diagnostic::do_not_recommend]
impl<E: Into<BoxError>> Outcome for Result<(), E> {
    #[inline]
    fn outcome(self) -> HookResult {
        self.map_err(Into::into)
    }
}

/// What the user's function returned, as the table wants it.
#[inline]
pub fn outcome<R: Outcome>(returned: R) -> HookResult {
    returned.outcome()
}

/// Is it the turn of a hook that runs each n-th time?
#[inline]
pub fn due<At: Moment>(run: &Run, n: u32) -> bool {
    let count = match At::INFO.counts {
        Some(Unit::Epochs) => run.step.epoch + 1,
        _ => run.ordinal,
    };
    count.is_multiple_of(u64::from(n))
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
        let none = std::mem::replace(&mut self.run.hooks[self.slot].value, self.value.take());
        std::mem::forget(none);
    }
}

impl Drop for Loan<'_> {
    #[cold]
    fn drop(&mut self) {
        self.give_back();
    }
}

/// Lends a hook's value to one of its methods, and takes it back on every way out.
#[inline]
pub fn lend<H: 'static>(
    run: &mut Run,
    slot: u32,
    method: impl FnOnce(&mut H, &mut Run) -> HookResult,
) -> HookResult {
    let slot = slot as usize;
    let value = run.hooks[slot].value.take();
    let mut loan = Loan { run, slot, value };
    let Some(hook) = loan.value.as_mut().and_then(|value| value.downcast_mut::<H>()) else {
        return Err(reached_itself::<H>());
    };
    let result = method(hook, loan.run);
    loan.give_back();
    std::mem::forget(loan); // its drop is for panics
    result
}

#[cold]
fn reached_itself<H>() -> BoxError {
    format!("`{}` is running already, and cannot be reached from itself", std::any::type_name::<H>()).into()
}
