//! What the marker types of the lifecycle have in common.

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
    message = "`{Self}` is not counted: it comes once, not once a step or an epoch",
    label = "not counted"
)]
pub trait Counted: Moment {}

/// A moment that a phase reaches.
#[diagnostic::on_unimplemented(message = "the phase `{Ph}` never reaches `{Self}`", label = "never reached")]
pub trait ReachedIn<Ph>: Moment {}

/// What the declaration of a lifecycle says about one of its moments.
#[derive(Debug)]
#[non_exhaustive]
pub struct MomentInfo {
    /// As it is written in an attribute: `after_backward`, `backward`.
    pub name: &'static str,
    /// The crate that declares it.
    pub krate: &'static str,
    /// Point or operation.
    pub kind: MomentKind,
    /// The phases that reach it.
    pub phases: PhaseSet,
    /// What `every` counts there.
    pub counts: Option<Unit>,
    /// How deep it lies in the tree; 0 at the top.
    pub depth: u8,
    /// The text of its declaration.
    pub docs: &'static str,
}

/// Point or operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MomentKind {
    /// A moment.
    Point,
    /// Something that the loop does.
    Operation,
}

/// What a recurring moment is counted in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Batches.
    Steps,
    /// Epochs.
    Epochs,
}
