//! Layers: what runs around each call of a hook, each operation, each module and each draw from a
//! loader.
//!
//! If a trainer has layers, the entries of its dispatch table are replaced by entries that call
//! them. Otherwise, they add no overhead.

use std::any::Any;
use std::sync::Arc;

use super::{Place, Run};
use crate::error::{BoxError, Error};
use crate::hook::call::Loop;
use crate::hook::definition::{HookResult, Shim};
use crate::hook::table::Shims;
use crate::lifecycle::ModuleForward;
use crate::moment::Moment;
use crate::moments::counters::Counters;
use crate::moments::tree;
use crate::phase::Phase;
use crate::run::Rest;

/// The layers of a run, from the outside in.
#[derive(Default)]
pub(crate) struct Layers(pub(crate) Vec<Arc<dyn Layer>>);

impl Layers {
    /// Returns the first layer of this type.
    pub(crate) fn get<L: Layer>(&self) -> Option<&L> {
        self.0.iter().find_map(|layer| (&**layer as &dyn Any).downcast_ref())
    }
}

/// Something that runs around each call: of a hook, of an operation with the hooks around it, of a
/// named [module](crate::modules), and of a loader for its next batch.
/// [`TrainerBuilder::layer`](crate::TrainerBuilder::layer) adds one. The profile and the tape are
/// layers, too.
///
/// Use this to measure or to trace all calls. To run something at one point, use a hook.
///
/// Calls are nested, so a layer is shared by those that are running. What it changes is in a
/// [`Mutex`](std::sync::Mutex) or an atomic.
///
/// ```
/// use std::time::{Duration, Instant};
/// use trainer::profile::SpanKind;
/// use trainer::{BoxError, Call, Layer};
///
/// /// Prints each hook that takes longer than a millisecond.
/// struct SlowHooks;
///
/// impl Layer for SlowHooks {
///     fn call(&self, call: &mut Call<'_>) -> Result<(), BoxError> {
///         let start = Instant::now();
///         let result = call.run();
///         let time = start.elapsed();
///         if call.kind() == SpanKind::Hook && time > Duration::from_millis(1) {
///             trainer::print_line(format!("{} took {time:?}", call.name()));
///         }
///         result
///     }
/// }
/// ```
pub trait Layer: Any + Send + Sync {
    /// Runs around a call: [`call.run()`](Call::run) runs the call itself, and the result of that
    /// is usually the result of the layer.
    ///
    /// # Errors
    ///
    /// Returns the error of the call. Another error takes its place, and is that of the hook or of
    /// the operation.
    fn call(&self, call: &mut Call<'_>) -> Result<(), BoxError>;
}

/// A call that a [`Layer`] runs around.
pub struct Call<'a> {
    pub(crate) run: &'a mut Run,
    pub(crate) target: Target,
    /// The number of layers that are around what is left of the call.
    depth: usize,
    /// Runs the call inside all layers.
    body: &'a mut dyn FnMut(&mut Run) -> HookResult,
}

/// The kind of a call that a [`Layer`] runs around, and of a span of a
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
    /// Runs the call, inside the layers that were added later. A layer runs it once.
    ///
    /// # Errors
    ///
    /// Returns the error of the call, or an error if the call has already run.
    pub fn run(&mut self) -> Result<(), BoxError> {
        let next = self.run.layers.0.get(self.depth).map(Arc::clone);
        self.depth += 1;
        match next {
            Some(layer) => layer.call(self),
            None => (self.body)(self.run),
        }
    }

    /// What is called. A call of a module that no hook or layer names is an operation
    /// `module_forward`.
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
            (Target::Entry, _) => self.run.at.place.operation.name.to_owned(),
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
        self.run.phase()
    }

    /// The counters.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.run.progress.counters
    }

    /// The index of the module that is being called.
    pub(crate) fn module(&self) -> Option<u32> {
        match self.target {
            Target::Operation(row) | Target::Body(row) if row == ModuleForward::index() => {
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

/// The functions that the entries of the table call if the trainer has layers. Those of operations
/// get the row of the operation instead of a slot.
pub(crate) const SHIMS: Shims<Run> = Shims {
    point,
    around,
    operation: |run, row, rest| run.layered(Target::Operation(row as usize), |run| Ok(run.run_rest(rest)?)),
    body: |run, row, rest| run.layered(Target::Body(row as usize), |run| Ok(run.run_rest(rest)?)),
};

fn point(run: &mut Run, slot: u32) -> HookResult {
    let hook = current(run.at.place);
    let Shim::Point(call) = run.hooks.table.hooks()[hook].definition.call else {
        unreachable!("an entry of a point belongs to a hook at a point")
    };
    run.layered(Target::Hook(hook), |run| call(run, slot))
}

fn around(run: &mut Run, slot: u32, rest: Rest<'_>) -> HookResult {
    let hook = current(run.at.place);
    let Shim::Around(call) = run.hooks.table.hooks()[hook].definition.call else {
        unreachable!("an entry around an operation belongs to a hook around it")
    };
    run.layered(Target::Hook(hook), |run| call(run, slot, rest))
}

fn current(place: Place) -> usize {
    place.hook.expect("dispatch sets the current hook before each call").index()
}

/// The error of a layer that has not returned the result of its call.
#[cold]
fn not_once() -> BoxError {
    let text = "a layer must run each of its calls once, and return an error if the call fails: return the result of `call.run()`";
    Error::usage(text).into()
}

impl Run {
    /// Runs `body` inside the layers.
    ///
    /// # Errors
    ///
    /// Returns the error of `body`, or else of a layer.
    pub(crate) fn layered<R, E: From<BoxError> + Into<BoxError>>(
        &mut self,
        target: Target,
        body: impl FnOnce(&mut Run) -> Result<R, E>,
    ) -> Result<R, E> {
        if self.layers.0.is_empty() {
            return body(self);
        }
        let mut body = Some(body);
        let mut value = None;
        let mut has_failed = false;
        let mut run_once = |run: &mut Run| {
            let result = body.take().ok_or_else(not_once)?(run);
            has_failed = result.is_err();
            value = Some(result.map_err(Into::into)?);
            Ok(())
        };
        let result = Call { run: self, target, depth: 0, body: &mut run_once }.run();
        let is_of_layer = !has_failed;
        match result.and_then(|()| value.ok_or_else(not_once)) {
            Ok(value) => Ok(value),
            // The error of a layer is that of the hook, or of the operation.
            Err(error) if is_of_layer && !matches!(target, Target::Hook(_)) => {
                let error: BoxError = self.locate(error.into()).into();
                Err(error.into())
            }
            Err(error) => Err(error.into()),
        }
    }
}
