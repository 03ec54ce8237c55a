//! What the expansion of `#[hook]` says about a hook.

use std::any::TypeId;
use std::borrow::Cow;
use std::num::NonZeroU32;

use super::discovery::crate_of;
use super::edge::Edge;
use crate::checkpoint::StateOf;
use crate::error::BoxError;
use crate::moment::{AtOperation, AtPoint, Counted, Index, Moment, MomentInfo, MomentKind, ReachedIn, Unit};
use crate::phase::{Phase, PhaseMarker, PhaseSet};
use crate::run::Run;

/// What a hook gives back: thin enough for two registers.
pub type HookResult = Result<(), BoxError>;

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
    /// It is part of a binary, whose crate may have the name of its package's library.
    pub binary: bool,
    /// The file, as rustc saw it.
    pub file: &'static str,
    /// The line of its name.
    pub line: u32,
    /// The first line of its doc comment.
    pub docs: &'static str,
}

impl Origin {
    /// Of a function, or of all hooks of a block.
    #[must_use]
    pub const fn new(
        module: &'static str,
        path: &'static str,
        version: Option<&'static str>,
        file: &'static str,
    ) -> Self {
        Origin {
            module,
            path: Cow::Borrowed(path),
            method: None,
            version,
            binary: false,
            file,
            line: 0,
            docs: "",
        }
    }

    /// In a binary.
    #[must_use]
    pub const fn in_binary(mut self) -> Self {
        self.binary = true;
        self
    }

    /// Of this method of the block.
    #[must_use]
    pub const fn method(mut self, name: &'static str) -> Self {
        self.method = Some(name);
        self
    }

    /// In this line, under this doc comment.
    #[must_use]
    pub const fn written(mut self, line: u32, docs: &'static str) -> Self {
        (self.line, self.docs) = (line, docs);
        self
    }

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

    /// Whether it is what a program calls by this path: that of a function, a type or a method, `my_crate::clip`, or of one
    /// version of its crate alone, `my_crate@1.2.0::clip`.
    pub(crate) fn is_called(&self, path: &str) -> bool {
        let (spec, rest) = path.split_once("::").map_or((path, None), |(spec, rest)| (spec, Some(rest)));
        let unversioned = match (spec.split_once('@'), rest) {
            (Some((krate, version)), Some(rest)) if self.version == Some(version) => {
                format!("{krate}::{rest}")
            }
            _ => path.to_owned(),
        };
        *self.path == *unversioned || self.name() == unversioned
    }

    /// Its name and place, for messages: `` `my_crate::clip` (src/clip.rs:12) ``.
    pub(crate) fn placed(&self) -> String {
        format!("`{}` ({}:{})", self.name(), self.file, self.line)
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
    /// Its function, or the type whose method it is: what edges point at.
    pub(crate) id: TypeId,
    pub(crate) ord: i32,
    /// The point that it stands at, or the operation that it goes around.
    pub(crate) moment: &'static MomentInfo,
    /// The row of its moment in the dispatch table.
    pub(crate) row: Index,
    /// The phases that it asked for; none means all.
    pub(crate) only: PhaseSet,
    pub(crate) every: Option<NonZeroU32>,
    /// Only in the process of rank 0.
    pub(crate) main_only: bool,
    pub(crate) edges: &'static [Edge],
    pub(crate) call: Shim,
}

impl HookDef {
    /// A hook at the point `At`.
    #[must_use]
    pub const fn at<At: AtPoint>(origin: Origin, id: TypeId, ord: i32, call: Shim) -> Self {
        Self::new::<At>(origin, id, ord, call)
    }

    /// A hook around the operation `At`.
    #[must_use]
    pub const fn around<At: AtOperation>(origin: Origin, id: TypeId, ord: i32, call: Shim) -> Self {
        Self::new::<At>(origin, id, ord, call)
    }

    const fn new<At: Moment>(origin: Origin, id: TypeId, ord: i32, call: Shim) -> Self {
        HookDef {
            origin,
            id,
            ord,
            moment: At::INFO,
            row: At::index,
            only: PhaseSet::NONE,
            every: None,
            main_only: false,
            edges: &[],
            call,
        }
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

    /// Only in the process of rank 0.
    #[must_use]
    pub const fn main_only(mut self) -> Self {
        self.main_only = true;
        self
    }

    /// Before and after these.
    #[must_use]
    pub const fn edges(mut self, edges: &'static [Edge]) -> Self {
        self.edges = edges;
        self
    }

    /// Is it around an operation, not at a point?
    pub(crate) fn goes_around(&self) -> bool {
        self.moment.kind == MomentKind::Operation
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
    /// The value that it is called with, by its place among the run's instances.
    pub(crate) slot: Option<u32>,
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

/// Whether a hook that runs every `n` batches, optimizer steps or epochs runs now.
#[inline]
pub fn due<At: Moment>(run: &Run, n: u32) -> bool {
    let count = match At::INFO.counts {
        Some(Unit::Epochs) => run.progress.counters.epoch + 1,
        Some(Unit::Steps) => run.step.step_number,
        Some(Unit::Batches) | None => run.progress.batch_number,
    };
    count.is_multiple_of(u64::from(n))
}

/// A type with a block of hooks: what `#[hook] impl MyType { … }` makes of it.
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no hooks",
    label = "not a value with hooks",
    note = "a type has hooks through an `impl` block: `#[hook] impl MyHook {{ fn after_step(&mut self, cx: &mut Cx<AfterStep>) {{ … }} }}`",
    note = "a closure is added with `.on::<AfterStep>(\"name\", |cx| …)`",
    note = "a function with `#[hook]` is discovered: every trainer has it without `.hook(…)`"
)]
pub trait Hooks: Send + 'static {
    /// Its hooks, in the order in which they are written.
    #[doc(hidden)]
    const HOOKS: &'static [HookDef];
    /// Whether a trainer takes one value of it at most: `#[hook(single)]`.
    #[doc(hidden)]
    const SINGLE: bool = false;
    /// How its state is kept in a checkpoint: `#[hook(state)]`.
    #[doc(hidden)]
    const STATE: Option<StateOf> = None;
    /// Calls the hook with this number, counted as they are written.
    #[doc(hidden)]
    fn __call<const NTH: usize>(&mut self, run: &mut Run) -> HookResult;
}
