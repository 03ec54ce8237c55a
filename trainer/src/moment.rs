//! What the marker types of a lifecycle have in common, and what their declaration says about them.

use std::any::TypeId;

use crate::phase::PhaseSet;

/// A point or an operation of the lifecycle, as a type: `AfterBackward`, `Backward`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is neither a point nor an operation of a lifecycle",
    label = "not part of a lifecycle",
    note = "`trainer::at` lists the trainer's own"
)]
pub trait Moment: Sized + 'static {
    /// What its declaration says.
    const INFO: &'static MomentInfo;

    /// Its row in the dispatch table.
    #[doc(hidden)]
    fn index() -> usize;
}

/// A moment that is a point.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is an operation, not a point",
    label = "an operation",
    note = "hook the points before and after it: `before_…`, `after_…`"
)]
pub trait AtPoint: Moment {}

/// A moment that is an operation: inside of it, before its work is done.
#[diagnostic::on_unimplemented(message = "`{Self}` is a point, not an operation", label = "a point")]
pub trait AtOperation: Moment {
    /// The point before it.
    type Before: AtPoint;
    /// The point after it.
    type After: AtPoint;
}

/// A moment that recurs, and is counted in [`Unit`]s.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not counted: it fires once, not once per batch, step or epoch",
    label = "not counted"
)]
pub trait Counted: Moment {}

/// A moment that a phase reaches.
#[diagnostic::on_unimplemented(message = "the phase `{Ph}` never reaches `{Self}`", label = "never reached")]
pub trait ReachedIn<Ph>: Moment {}

/// A moment that lies in the operation `O`, or is `O` itself.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not lie within `{O}`",
    label = "not within `{O}`",
    note = "the declaration says `within`: only there can it be reached"
)]
pub trait Inside<O>: Moment {}

/// A moment of a lifecycle of one's own that can be reached from a hook at `P`: its declaration asks for
/// nothing that does not exist there.
#[diagnostic::on_unimplemented(
    message = "a hook cannot reach `{Self}`: the trainer itself does, when its time has come",
    label = "a moment of the trainer's own",
    note = "`trainer::lifecycle!` declares points and operations that hooks and tasks can reach"
)]
pub trait ReachFrom<P>: Moment {}

/// A moment that `trainer::lifecycle!` declares.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is a moment of the trainer's own lifecycle",
    label = "not of a lifecycle of one's own",
    note = "where a hook stands already says in which of the trainer's operations it runs"
)]
pub trait Own: Moment {}

/// What the declaration of a lifecycle says about one of its moments.
#[derive(Debug)]
#[non_exhaustive]
pub struct MomentInfo {
    /// As it is written in an attribute: `after_backward`, `backward`.
    pub name: &'static str,
    /// The module whose `at` holds the name.
    pub module: &'static str,
    /// What it is.
    pub kind: MomentKind,
    /// The phases that reach it.
    pub phases: PhaseSet,
    /// What `every` counts there.
    pub counts: Option<Unit>,
    /// The text of its declaration.
    pub docs: &'static str,
    /// The operation that it lies in; the points before and after an operation lie in it.
    pub(crate) within: Option<Index>,
    /// The operations that run here too, though they are declared elsewhere.
    pub(crate) again: &'static [Index],
    /// The task, or the hooks, that alone reach it, with their names; none is anybody.
    pub(crate) by: &'static [(TypeId, &'static str)],
    /// The name of the metric of a loss that is computed in it: `discriminator_step/loss`.
    pub(crate) loss: &'static str,
}

/// The row of a moment, once all lifecycles of the program are known.
pub(crate) type Index = fn() -> usize;

impl MomentInfo {
    /// Only for what `lifecycle!` expands to.
    #[doc(hidden)]
    #[must_use]
    pub const fn new(
        name: &'static str,
        loss: &'static str,
        module: &'static str,
        kind: MomentKind,
        docs: &'static str,
    ) -> Self {
        let (phases, counts) = (PhaseSet::NONE, None);
        MomentInfo { name, module, kind, phases, counts, docs, within: None, again: &[], by: &[], loss }
    }

    #[doc(hidden)]
    #[must_use]
    pub const fn reached(mut self, phases: PhaseSet, counts: Option<Unit>) -> Self {
        (self.phases, self.counts) = (phases, counts);
        self
    }

    #[doc(hidden)]
    #[must_use]
    pub const fn within(mut self, within: Option<Index>, again: &'static [Index]) -> Self {
        (self.within, self.again) = (within, again);
        self
    }

    #[doc(hidden)]
    #[must_use]
    pub const fn by(mut self, by: &'static [(TypeId, &'static str)]) -> Self {
        self.by = by;
        self
    }

    /// What one writes in an attribute: `after_backward`, `my_crate::at::after_round`.
    #[must_use]
    pub fn path(&self) -> String {
        if self.module == ROOT { self.name.to_owned() } else { format!("{}::at::{}", self.module, self.name) }
    }
}

/// The module of the trainer's own lifecycle.
pub(crate) const ROOT: &str = "trainer::lifecycle";

/// What a moment is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MomentKind {
    /// A point of its own.
    Point,
    /// The point before the operation that it lies in.
    Before,
    /// Something that the loop does.
    Operation,
    /// The point after the operation that it lies in.
    After,
}

/// What a recurring moment is counted in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Batches of the current phase; over all epochs in training.
    Batches,
    /// Optimizer steps of the current part of the model.
    Steps,
    /// Epochs.
    Epochs,
}

impl Unit {
    /// The word for it: `batches`, `steps`, `epochs`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Unit::Batches => "batches",
            Unit::Steps => "steps",
            Unit::Epochs => "epochs",
        }
    }
}
