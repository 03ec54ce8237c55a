//! Layers: what runs before and after each call of a hook, each operation, each module and each
//! draw from a loader.
//!
//! If a trainer has layers, the entries of its dispatch table are replaced by entries that call
//! them. Otherwise, they add no overhead.

use std::any::Any;
use std::cell::{Ref, RefMut};

use super::{Place, Run};
use crate::error::Result;
use crate::hook::call::Loop;
use crate::hook::definition::{HookResult, Shim};
use crate::hook::table::Shims;
use crate::lifecycle::Module;
use crate::moment::Moment;
use crate::moments::counters::Counters;
use crate::moments::tree;
use crate::phase::Phase;
use crate::run::Rest;

/// Something that runs before and after each call: of a hook, of an operation with the hooks around
/// it, of a named [module](crate::modules), and of a loader for its next batch.
/// [`TrainerBuilder::layer`](crate::TrainerBuilder::layer) adds one. The profile and the tape are
/// layers, too.
///
/// Use this to measure or to trace all calls. To run something at one point, use a hook.
///
/// ```
/// use std::time::{Duration, Instant};
/// use trainer::profile::SpanKind;
/// use trainer::{Call, Layer, Result};
///
/// /// Prints each hook that takes longer than a millisecond. Holds when the running calls began.
/// struct SlowHooks(Vec<Instant>);
///
/// impl Layer for SlowHooks {
///     fn before(&mut self, _: &Call<'_>) -> Result<()> {
///         self.0.push(Instant::now());
///         Ok(())
///     }
///     fn after(&mut self, call: &Call<'_>) -> Result<()> {
///         let time = self.0.pop().map_or(Duration::ZERO, |start| start.elapsed());
///         if call.kind() == SpanKind::Hook && time > Duration::from_millis(1) {
///             trainer::print_line(format!("{} took {time:?}", call.name()));
///         }
///         Ok(())
///     }
/// }
/// ```
pub trait Layer: Any + Send {
    /// Runs before a call.
    ///
    /// # Errors
    ///
    /// An error takes the place of the call, and is that of the hook or the operation.
    fn before(&mut self, call: &Call<'_>) -> Result<()> {
        let _ = call;
        Ok(())
    }

    /// Runs after a call for which [`before`](Layer::before) has run, even if the call has failed.
    /// It also runs while a panic unwinds, which [`std::thread::panicking`] tells.
    ///
    /// # Errors
    ///
    /// An error is returned if the call itself has succeeded.
    fn after(&mut self, call: &Call<'_>) -> Result<()> {
        let _ = call;
        Ok(())
    }
}

/// A call that a [`Layer`] surrounds.
#[derive(Clone, Copy)]
pub struct Call<'a> {
    pub(crate) run: &'a Run,
    pub(crate) target: Target,
}

/// The kind of a call that a [`Layer`] surrounds, and of a span of a
/// [`Profile`](crate::profile::Profile).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SpanKind {
    /// The entry point: `fit`, `validate`, `test` or `predict`, with the hooks at `setup`,
    /// `after_error`, `after_cancel` and `teardown`.
    Entry,
    /// A wait for a loader: for the first batch, the next batch or the end of the data.
    Data,
    /// An operation, with the hooks around it.
    Operation,
    /// A [named module](crate::modules), with the hooks around it.
    Module,
    /// A hook.
    Hook,
}

impl SpanKind {
    /// Returns the name: `entry`, `data`, `operation`, `module`, `hook`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            SpanKind::Entry => "entry",
            SpanKind::Data => "data",
            SpanKind::Operation => "operation",
            SpanKind::Module => "module",
            SpanKind::Hook => "hook",
        }
    }
}

/// What is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Entry,
    Loader,
    /// The operation in this row of the dispatch table, with the hooks around it.
    Operation(usize),
    /// The operation in this row, inside the hooks around it.
    Body(usize),
    /// The hook with this index in the dispatch table.
    Hook(usize),
}

impl Call<'_> {
    /// What is called. A call of a module that no hook or layer names is an operation `module`.
    #[must_use]
    pub fn kind(&self) -> SpanKind {
        match self.target {
            Target::Entry => SpanKind::Entry,
            Target::Loader => SpanKind::Data,
            Target::Hook(_) => SpanKind::Hook,
            _ if self.module().is_some() => SpanKind::Module,
            Target::Operation(_) | Target::Body(_) => SpanKind::Operation,
        }
    }

    /// The name of the operation, the module or the entry point, the path of the hook, or `data`.
    #[must_use]
    pub fn name(&self) -> String {
        match (self.target, self.module()) {
            (Target::Entry, _) => self.run.place.operation.name.to_owned(),
            (Target::Loader, _) => "data".to_owned(),
            (Target::Hook(hook), _) => self.run.hooks.table.hooks()[hook].definition.shown(),
            (_, Some(known)) => self.run.modules.known[known as usize].name.to_string(),
            (Target::Operation(row) | Target::Body(row), None) => tree::moments()[row].path(),
        }
    }

    /// The point or the operation of a hook; `None` for other calls.
    #[must_use]
    pub fn moment(&self) -> Option<String> {
        let Target::Hook(hook) = self.target else { return None };
        Some(self.run.hooks.table.hooks()[hook].definition.moment.path())
    }

    /// Whether this is an operation or a module without the hooks around it. An operation that has
    /// such hooks is called twice, once with them.
    #[must_use]
    pub fn is_body(&self) -> bool {
        matches!(self.target, Target::Body(_))
    }

    /// The phase.
    #[must_use]
    pub fn phase(&self) -> Phase {
        self.run.place().phase
    }

    /// The counters.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.run.progress.counters
    }

    /// The index of the module that is being called.
    pub(crate) fn module(&self) -> Option<u32> {
        match self.target {
            Target::Operation(row) | Target::Body(row) if row == Module::index() => {
                self.run.modules.calls.last().map(|call| call.known)
            }
            _ => None,
        }
    }
}

impl std::fmt::Debug for Call<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Call").field("kind", &self.kind()).field("name", &self.name()).finish()
    }
}

/// The functions that the entries of the table call if the trainer has layers.
pub(crate) const SHIMS: Shims<Run> = Shims { point, around, operation, body };

fn point(run: &mut Run, slot: u32) -> HookResult {
    let hook = current(run.place);
    let Shim::Point(call) = run.hooks.table.hooks()[hook].definition.call else {
        unreachable!("an entry of a point belongs to a hook at a point")
    };
    run.layered(Target::Hook(hook), |run| call(run, slot))
}

fn around(run: &mut Run, slot: u32, rest: Rest<'_>) -> HookResult {
    let hook = current(run.place);
    let Shim::Around(call) = run.hooks.table.hooks()[hook].definition.call else {
        unreachable!("an entry around an operation belongs to a hook around it")
    };
    run.layered(Target::Hook(hook), |run| call(run, slot, rest))
}

fn current(place: Place) -> usize {
    place.hook.expect("dispatch sets the current hook before each call").index()
}

/// Runs an operation with the hooks around it. `row` is its row, passed instead of a slot.
fn operation(run: &mut Run, row: u32, rest: Rest<'_>) -> HookResult {
    run.layered(Target::Operation(row as usize), |run| Ok(run.run_rest(rest)?))
}

/// Runs an operation inside the hooks around it. `row` is its row, passed instead of a slot.
fn body(run: &mut Run, row: u32, rest: Rest<'_>) -> HookResult {
    run.layered(Target::Body(row as usize), |run| Ok(run.run_rest(rest)?))
}

/// A call for which `before` has run. Dropping it, even while a panic unwinds, runs `after`.
struct Open<'a> {
    run: &'a mut Run,
    target: Target,
    /// The number of layers for which `before` has run.
    layers: usize,
}

impl Open<'_> {
    fn before(&mut self) -> Result<()> {
        let mut layers = self.run.layers.borrow_mut();
        for layer in layers.iter_mut() {
            layer.before(&Call { run: self.run, target: self.target })?;
            self.layers += 1;
        }
        Ok(())
    }

    fn after(&mut self) -> Result<()> {
        let mut layers = self.run.layers.borrow_mut();
        let mut result = Ok(());
        while let Some(last) = self.layers.checked_sub(1) {
            self.layers = last;
            if let Some(layer) = layers.get_mut(last) {
                result = layer.after(&Call { run: self.run, target: self.target }).and(result);
            }
        }
        result
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        let _ = self.after();
    }
}

impl Run {
    /// Runs `body` between what the layers run before and after it.
    ///
    /// # Errors
    ///
    /// Returns the error of `body`, or else of a layer.
    pub(crate) fn layered<R, E: From<crate::error::Error>>(
        &mut self,
        target: Target,
        body: impl FnOnce(&mut Run) -> Result<R, E>,
    ) -> Result<R, E> {
        if self.layers.get_mut().is_empty() {
            return body(self);
        }
        let mut open = Open { run: self, target, layers: 0 };
        // The error of a layer is that of the hook, or of the operation.
        let locate = |run: &Run, error| match target {
            Target::Hook(_) => error,
            _ => run.locate(error),
        };
        open.before().map_err(|error| locate(open.run, error))?;
        let result = body(open.run);
        let after = open.after().map_err(|error| locate(open.run, error));
        let value = result?;
        after?;
        Ok(value)
    }

    /// Returns the first layer of this type mutably.
    pub(crate) fn layer_mut<L: Layer>(&self) -> Option<RefMut<'_, L>> {
        RefMut::filter_map(self.layers.borrow_mut(), |layers| {
            layers.iter_mut().find_map(|layer| (&mut **layer as &mut dyn Any).downcast_mut())
        })
        .ok()
    }

    /// Returns the first layer of this type.
    pub(crate) fn layer<L: Layer>(&self) -> Option<Ref<'_, L>> {
        Ref::filter_map(self.layers.borrow(), |layers| {
            layers.iter().find_map(|layer| (&**layer as &dyn Any).downcast_ref())
        })
        .ok()
    }
}
