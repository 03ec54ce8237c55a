//! Closures as hooks, added with `.on`.

use std::any::{TypeId, type_name};
use std::panic::Location;

use super::shim::{already_borrowed, lend, lent_as};
use crate::distributed::main_only::MainOnlyGuard;
use crate::error::Result;
use crate::hook::call::Loop;
use crate::hook::definition::{HookResult, Origin, PointShim};
use crate::hook::set::{HookSet, SetRef};
use crate::hook::table::module_moments;
use crate::modules::{ModulePattern, Patterns};
use crate::moment::{AtPoint, Moment};
use crate::moments::never::Returned;
use crate::phase::PhaseSet;
use crate::run::Run;
use crate::run::context::Cx;
use crate::run::{HookDef, Shim};

/// The name and options of a closure hook: the first argument of
/// [`.on`](crate::TrainerBuilder::on).
///
/// A string converts to a name with default options.
///
/// ```
/// use trainer::TrainerBuilder;
/// use trainer::prelude::*;
///
/// fn print_some(builder: TrainerBuilder<impl Task>) -> TrainerBuilder<impl Task> {
///     let options = HookOptions::named("print").ord(10).only(Phase::Train).every(100);
///     builder.on::<AfterStep>(options, |cx| println!("{:?}", cx.step_loss()))
/// }
/// ```
#[derive(Clone, Debug)]
#[must_use = "pass it to `.on` as the first argument"]
pub struct HookOptions {
    name: String,
    ord: i32,
    sets: Vec<SetRef>,
    only: Option<PhaseSet>,
    every: Option<u64>,
    trial: Option<bool>,
    modules: Patterns,
}

impl HookOptions {
    /// Returns options with this name and the defaults of `#[hook]`.
    pub fn named(name: impl Into<String>) -> Self {
        let modules = Patterns::all();
        HookOptions {
            name: name.into(),
            ord: 0,
            sets: Vec::new(),
            only: None,
            every: None,
            trial: None,
            modules,
        }
    }

    /// Sets the order: lower runs first. Defaults to 0.
    pub fn ord(mut self, ord: i32) -> Self {
        self.ord = ord;
        self
    }

    /// Adds the hook to a [set](HookSet), such as one of the [stages](crate::stages):
    /// `.in_set(stages::Display)`. Each further call adds the hook to one more set.
    pub fn in_set<S: HookSet>(mut self, _: S) -> Self {
        self.sets.push(SetRef::of::<S>(std::any::type_name::<S>()));
        self
    }

    /// Limits the hook to one phase, or to several: `only([Phase::Valid, Phase::Test])`. Defaults
    /// to all phases.
    pub fn only(mut self, phases: impl Into<PhaseSet>) -> Self {
        self.only = Some(phases.into());
        self
    }

    /// Runs the hook on every `n`-th batch, optimizer step, epoch or record, depending on what its
    /// point counts.
    pub fn every(mut self, n: u64) -> Self {
        self.every = Some(n);
        self
    }

    /// Sets whether the hook runs in the [trials](crate::language::trial) of finders. By default,
    /// it does not run, and a warning reports this.
    pub fn trial(mut self, runs: bool) -> Self {
        self.trial = Some(runs);
        self
    }

    /// Limits the hook to the [modules](crate::modules) whose names match: one pattern, several, or
    /// [`Patterns`], which can include optional ones. Defaults to all modules.
    pub fn of(mut self, modules: impl Into<Patterns>) -> Self {
        self.modules = modules.into();
        self
    }

    /// The patterns of the modules that the hook runs at.
    pub(crate) fn modules(&self) -> Vec<ModulePattern> {
        self.modules.0.clone()
    }

    /// Returns the definition of the closure `F`. Adds a message to `mistakes` for each invalid
    /// option.
    pub(crate) fn define<P: AtPoint, F: 'static>(
        self,
        call: PointShim<Run>,
        observes: bool,
        place: &'static Location<'static>,
        mistakes: &mut Vec<String>,
    ) -> HookDef {
        let HookOptions { name, ord, sets, only, every, trial, modules } = self;
        let path = P::INFO.path();
        match every {
            Some(0) => mistakes.push(format!("`.every(0)` of the closure `{name}` at `{path}`: expected at least 1")),
            Some(_) if P::INFO.counts.is_none() => mistakes.push(format!(
                "the closure `{name}` cannot have `every`, because `{path}` is not counted in batches, optimizer steps, epochs or records: remove `every`"
            )),
            _ => {}
        }
        if only == Some(PhaseSet::NONE) {
            mistakes.push(format!(
                "`.only([])` of the closure `{name}` at `{path}`: expected at least one phase"
            ));
        }
        let is_at_module = module_moments().contains(&P::index());
        if !modules.0.is_empty() && !is_at_module {
            mistakes.push(format!(
                "the closure `{name}` cannot have `of`, because `{path}` is not a point of a module: remove `of`"
            ));
        }
        if modules.0.iter().any(|pattern| pattern.text.is_empty()) {
            mistakes.push(format!(
                "`.of(\"\")` of the closure `{name}` at `{path}`: expected the name of a module"
            ));
        }
        let origin = Origin::closure(name, place, "A closure");
        let definition = HookDef::new::<P>(origin, TypeId::of::<F>(), ord, Shim::Point(call));
        HookDef { only: only.unwrap_or_default(), every, trial, observes, sets: sets.into(), ..definition }
    }
}

impl From<&str> for HookOptions {
    fn from(name: &str) -> Self {
        HookOptions::named(name)
    }
}

impl From<String> for HookOptions {
    fn from(name: String) -> Self {
        HookOptions::named(name)
    }
}

/// Calls a closure that may change training, if it is due.
pub(crate) fn call<P: AtPoint, F: ClosureHook<P>>(run: &mut Run, slot: u32) -> HookResult {
    if !run.is_due() {
        return Ok(());
    }
    let _guard = P::IS_MAIN_ONLY.then(MainOnlyGuard::begin);
    lend(run, slot, 0, |closure, _, run| match lent_as::<F>(closure) {
        Some(closure) => Ok(closure(Cx::from_run(run)).outcome()?),
        None => Err(already_borrowed(run.at.place, type_name::<F>())),
    })
}

/// Calls a closure that only observes, if it is due.
pub(crate) fn observe<P: AtPoint, F: ObserverClosure<P>>(run: &mut Run, slot: u32) -> HookResult {
    if !run.is_due() {
        return Ok(());
    }
    let _guard = P::IS_MAIN_ONLY.then(MainOnlyGuard::begin);
    lend(run, slot, 0, |closure, _, run| match lent_as::<F>(closure) {
        Some(closure) => Ok(closure(Cx::from_shared(run)).outcome()?),
        None => Err(already_borrowed(run.at.place, type_name::<F>())),
    })
}

/// A closure that can be a hook at the point `P`: it takes `&mut Cx<P>` and returns `()` or
/// [`Result<()>`](Result).
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a hook at `{P}`",
    label = "not a closure that takes `&mut Cx<{P}>`",
    note = "a closure hook is `|cx| …`, or a function that takes `&mut Cx<{P}>`; what it captures must be `Send + 'static`",
    note = "a closure or function that takes `&Cx<{P}>` is added with `.observe`"
)]
pub trait ClosureHook<P: Moment>:
    FnMut(&mut Cx<P>) -> <Self as ClosureHook<P>>::Output + Send + 'static
{
    /// The return type of the closure.
    #[doc(hidden)]
    type Output: ClosureOutcome;
}

impl<P: Moment, R: ClosureOutcome, F: FnMut(&mut Cx<P>) -> R + Send + 'static> ClosureHook<P> for F {
    type Output = R;
}

/// A closure that can be an observing hook at the point `P`: it takes `&Cx<P>` and returns `()` or
/// [`Result<()>`](Result).
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot observe at `{P}`",
    label = "not a closure that takes `&Cx<{P}>`",
    note = "a closure that observes is `|cx| …`, or a function that takes `&Cx<{P}>`; what it captures must be `Send + 'static`"
)]
pub trait ObserverClosure<P: Moment>:
    FnMut(&Cx<P>) -> <Self as ObserverClosure<P>>::Output + Send + 'static
{
    /// The return type of the closure.
    #[doc(hidden)]
    type Output: ClosureOutcome;
}

impl<P: Moment, R: ClosureOutcome, F: FnMut(&Cx<P>) -> R + Send + 'static> ObserverClosure<P> for F {
    type Output = R;
}

/// A type that a closure hook can return. Only one error type is allowed, so that `?` needs no
/// annotation.
#[diagnostic::on_unimplemented(
    message = "a closure hook returns `()` or `trainer::Result<()>`, not `{Self}`",
    label = "cannot be returned by a closure hook",
    note = "`?` converts most errors; return a new error with `Err(Error::msg(\"…\"))`"
)]
pub trait ClosureOutcome {
    #[doc(hidden)]
    fn outcome(self) -> Result<()>;
}

#[diagnostic::do_not_recommend]
impl ClosureOutcome for () {
    fn outcome(self) -> Result<()> {
        Ok(())
    }
}

#[diagnostic::do_not_recommend]
impl ClosureOutcome for Result<()> {
    fn outcome(self) -> Result<()> {
        self
    }
}

#[diagnostic::do_not_recommend]
impl ClosureOutcome for <fn() -> ! as Returned>::Type {
    fn outcome(self) -> Result<()> {
        match self {}
    }
}
