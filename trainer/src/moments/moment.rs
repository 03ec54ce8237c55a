//! Moments: the points and operations of a lifecycle, each with a marker type.

use std::any::TypeId;
use std::convert::Infallible;
use std::marker::PhantomData;
use std::sync::OnceLock;

use crate::phase::PhaseSet;

/// A moment: a point or an operation of a lifecycle, as a marker type (`AfterBackward`,
/// `Backward`).
#[diagnostic::on_unimplemented(
    message = "`{Self}` is neither a point nor an operation of a lifecycle",
    label = "not a point or operation",
    note = "`trainer::at` lists the points and operations of the trainer"
)]
pub trait Moment: Sized + 'static {
    /// The description of the moment, from its declaration.
    const INFO: &'static MomentInfo;

    /// Whether hooks at this moment run in the process of rank 0 only.
    #[doc(hidden)]
    const IS_MAIN_ONLY: bool = false;

    /// Returns the row of the moment in the dispatch table.
    #[doc(hidden)]
    fn index() -> usize;
}

/// The moment `P`, for a hook that runs in the process of [rank](crate::TrainerBuilder::rank) 0
/// only: `Cx<Main<AfterStep>>`.
///
/// All values that can be read at `P` can be read at `Main<P>` too. Methods that must be called on
/// all [ranks](crate::distributed) ([`OnAllRanks`]) are not available: collectives, custom points
/// and operations, and changes to the batch, the model or the gradients. The same rules apply in a
/// program with one process.
///
/// ```standalone_crate
/// use trainer::prelude::*;
///
/// #[hook]
/// fn after_epoch(cx: &Cx<Main<AfterEpoch>>) {
///     trainer::print_line(format!("epoch {}: {}", cx.counters().epoch, cx.metrics()["train/loss"]));
/// }
/// # fn main() {}
/// ```
#[doc(alias = "rank_zero_only")]
#[derive(Debug)]
pub struct Main<P> {
    _never: Infallible,
    _at: PhantomData<fn() -> P>,
}

#[diagnostic::do_not_recommend]
impl<P: Moment> Moment for Main<P> {
    const INFO: &'static MomentInfo = P::INFO;
    const IS_MAIN_ONLY: bool = true;

    #[inline]
    fn index() -> usize {
        P::index()
    }
}

#[diagnostic::do_not_recommend]
impl<P: AtPoint> AtPoint for Main<P> {}

#[diagnostic::do_not_recommend]
impl<P: HasPayload> HasPayload for Main<P> {
    type Payload = P::Payload;
}

#[diagnostic::do_not_recommend]
impl<P: Counted> Counted for Main<P> {}

#[diagnostic::do_not_recommend]
impl<P: ReachedIn<Ph>, Ph> ReachedIn<Ph> for Main<P> {}

#[diagnostic::do_not_recommend]
impl<P: Within<O>, O> Within<O> for Main<P> {}

/// A moment of hooks that run on all [ranks](crate::distributed): every moment except
/// [`Main<P>`](Main). A generic helper function that calls a collective needs this bound:
///
/// ```
/// use trainer::distributed::Op;
/// use trainer::prelude::*;
///
/// /// Returns the sum of `value` over all ranks.
/// fn sum<P: OnAllRanks>(cx: &Cx<P>, value: f64) -> Result<f64> {
///     let sum = Tensor::from(value);
///     cx.world().all_reduce("sum", &sum, Op::Sum)?;
///     Ok(sum.double_value(&[]))
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not `OnAllRanks`: a hook with `Main` in its context runs on rank 0 only, so it cannot take part \
               in a collective, fire or run a moment, or change the batch, the model or the gradients",
    label = "needs a hook that runs on all ranks",
    note = "remove `Main`, and limit what only rank 0 does with `if cx.is_main()`"
)]
pub trait OnAllRanks: Moment {}

/// A moment that is a point.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a point",
    label = "not a point",
    note = "for an operation, use the point before or after it, such as `BeforeBackward`, or make this a hook around it: `cx: \
            &mut Cx<Backward>, next: Next<Backward>`",
    note = "`trainer::at` lists the points and operations of the trainer"
)]
pub trait AtPoint: Moment {}

/// A point with a payload: a value that a hook or a task [fires](crate::Cx::fire_with) the point
/// with, and that hooks at the point can [read](crate::Cx::payload) and
/// [change](crate::Cx::payload_mut). Declared in a custom lifecycle: `point sampled(Samples);`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no payload",
    label = "no payload here",
    note = "a point of `trainer::lifecycle!` has a payload if its declaration names the type: `point sampled(Samples)`"
)]
pub trait HasPayload: AtPoint {
    /// The type of the payload.
    type Payload: Send + 'static;
}

/// A point without a [payload](HasPayload).
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be fired without a payload",
    label = "not a point without a payload",
    note = "if it has a payload, write `fire_with::<{Self}>(payload)?`, which returns it when all hooks have run",
    note = "if it is an operation, run it: `cx.run::<{Self}>(|cx| …)?`"
)]
pub trait WithoutPayload: AtPoint {}

/// A moment that is an operation.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an operation",
    label = "not an operation",
    note = "a hook at a point takes no `next`",
    note = "fire a point with `cx.fire::<{Self}>()`; only operations can be run or have moments `within` them"
)]
pub trait AtOperation: Moment {
    /// The point before the operation, such as `before_pred`.
    type Before: AtPoint;
    /// The point after the operation, such as `after_pred`.
    type After: AtPoint;
}

/// A moment that recurs and is counted in [`Unit`]s, so that its hooks can have `every`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not counted: it fires once, not once per batch, step, epoch or record",
    label = "not counted",
    note = "remove `every`, or use a moment that is counted, such as `after_step`, `after_opt_step` or `after_epoch`"
)]
pub trait Counted: Moment {}

/// A moment that the phase `Ph` reaches.
#[diagnostic::on_unimplemented(message = "the phase `{Ph}` never reaches `{Self}`", label = "never reached")]
pub trait ReachedIn<Ph>: Moment {}

/// A moment within the operation `O`, or `O` itself.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not within `{O}`",
    label = "not within `{O}`",
    note = "a moment declared `within` an operation can only be fired or run inside that operation"
)]
pub trait Within<O>: Moment {}

/// A custom moment that can be fired or run from a hook at `P`, because everything that its
/// declaration lists after `:` exists at `P`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a custom point or operation, and a hook can only fire or run custom ones",
    label = "not a custom point or operation",
    note = "`trainer::lifecycle!` declares custom points and operations",
    note = "the points before and after a custom operation fire when it runs: `cx.run::<…>(|cx| …)?`"
)]
pub trait FireableFrom<P>: Moment {}

/// A moment declared with `trainer::lifecycle!`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not part of a custom lifecycle",
    label = "belongs to the trainer",
    note = "the point of a hook already determines in which of the trainer's operations it runs"
)]
pub trait CustomMoment: Moment {}

/// The description of a moment, from its declaration.
#[derive(Debug)]
#[non_exhaustive]
pub struct MomentInfo {
    /// The name, such as `after_backward` or `backward`.
    pub name: &'static str,
    /// The module whose submodule `at` contains the name.
    pub module: &'static str,
    /// The version of the package that declares the moment.
    pub(crate) version: Option<&'static str>,
    /// The kind: an operation, the point before or after an operation, or any other point.
    pub kind: MomentKind,
    /// The phases that reach the moment.
    pub phases: PhaseSet,
    /// The unit of `every`, or `None` if hooks at this moment cannot have `every`.
    pub counts: Option<Unit>,
    /// The doc comment on the moment's declaration.
    pub docs: &'static str,
    /// The containing operation. An operation contains the points before and after it.
    pub(crate) within: Option<Index>,
    /// The operations and points that are declared elsewhere and also run within this operation.
    pub(crate) again: &'static [Index],
    /// The types and names of the tasks and hooks that may reach the moment; empty if all may.
    pub(crate) by: &'static [(TypeId, &'static str)],
    /// The name of the metric for a loss that is computed in this operation:
    /// `discriminator_step/loss`.
    pub(crate) loss: &'static str,
    /// Whether the operation itself computes with the task. Operations inside it have their own.
    pub(crate) computes: bool,
}

/// A function that returns the row of a moment in the dispatch table. The row depends on all
/// lifecycles in the program.
pub(crate) type Index = fn() -> usize;

impl MomentInfo {
    /// Creates a description. Used by the expansion of `lifecycle!` only.
    #[doc(hidden)]
    #[must_use]
    pub const fn new(
        name: &'static str,
        loss: &'static str,
        (module, version): (&'static str, Option<&'static str>),
        kind: MomentKind,
        docs: &'static str,
    ) -> Self {
        let phases = PhaseSet::NONE;
        MomentInfo {
            name,
            module,
            version,
            kind,
            phases,
            counts: None,
            docs,
            within: None,
            again: &[],
            by: &[],
            loss,
            computes: false,
        }
    }

    #[doc(hidden)]
    #[must_use]
    pub const fn computes(mut self) -> Self {
        self.computes = true;
        self
    }

    #[doc(hidden)]
    #[must_use]
    pub const fn reached(mut self, phases: PhaseSet, counts: Option<Unit>) -> Self {
        self.phases = phases;
        self.counts = counts;
        self
    }

    #[doc(hidden)]
    #[must_use]
    pub const fn within(mut self, within: Option<Index>, again: &'static [Index]) -> Self {
        self.within = within;
        self.again = again;
        self
    }

    #[doc(hidden)]
    #[must_use]
    pub const fn by(mut self, by: &'static [(TypeId, &'static str)]) -> Self {
        self.by = by;
        self
    }

    /// Returns the path as written in an attribute: `after_backward`, `my_crate::at::after_round`.
    /// If several versions of the crate declare moments in this program, the version of the crate
    /// follows its name: `my_crate@1.2.0::at::after_round`.
    #[must_use]
    pub fn path(&self) -> String {
        self.path_with(SEVERAL_VERSIONS.get().map_or(&[], Vec::as_slice))
    }

    /// Returns the path if several versions of these crates declare moments.
    fn path_with(&self, several_versions: &[&str]) -> String {
        if self.module == ROOT {
            return self.name.to_owned();
        }
        let krate = self.module.split("::").next().unwrap_or_default();
        match self.version.filter(|_| several_versions.contains(&krate)) {
            Some(version) => {
                format!("{krate}@{version}{}::at::{}", &self.module[krate.len()..], self.name)
            }
            None => format!("{}::at::{}", self.module, self.name),
        }
    }
}

/// The crates of which several versions declare moments in this program. Set when the tree of all
/// lifecycles is computed, before the first trainer is built.
pub(crate) static SEVERAL_VERSIONS: OnceLock<Vec<&'static str>> = OnceLock::new();

/// The module of the trainer's own lifecycle.
pub(crate) const ROOT: &str = "trainer::moments::lifecycle";

/// The kind of a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MomentKind {
    /// A point other than the points before and after operations.
    Point,
    /// The point before an operation.
    Before,
    /// An operation.
    Operation,
    /// The point after an operation.
    After,
}

/// The unit in which a recurring moment is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Batches: counted over all epochs in training, and within the current pass otherwise.
    Batches,
    /// Optimizer steps of the current part of the model.
    Steps,
    /// Epochs.
    Epochs,
    /// Records of the current phase. Records at the end of a pass are counted separately.
    Records,
}

impl Unit {
    /// Returns the name of the unit: `batches`, `steps`, `epochs`, `records`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Unit::Batches => "batches",
            Unit::Steps => "steps",
            Unit::Epochs => "epochs",
            Unit::Records => "records",
        }
    }

    /// Formats an interval: `every batch`, `every 2 batches`.
    pub(crate) fn every(self, n: u64) -> String {
        match (n, self) {
            (1, Unit::Batches) => "every batch".to_owned(),
            (1, unit) => format!("every {}", unit.name().trim_end_matches('s')),
            (n, unit) => format!("every {n} {}", unit.name()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_of_two_versions_of_a_crate_are_distinguished() {
        let moment =
            |version| MomentInfo::new("drawn", "", ("plugin::games", Some(version)), MomentKind::Point, "");
        let [old, new] = ["0.1.0", "0.2.0"].map(moment);
        assert_eq!(old.path_with(&[]), "plugin::games::at::drawn");
        assert_eq!(old.path_with(&["plugin"]), "plugin@0.1.0::games::at::drawn");
        assert_eq!(new.path_with(&["plugin"]), "plugin@0.2.0::games::at::drawn");
        assert_eq!(new.path_with(&["other"]), "plugin::games::at::drawn");
    }

    #[test]
    fn intervals_are_in_the_singular_and_in_the_plural() {
        for (unit, one, two) in [
            (Unit::Batches, "every batch", "every 2 batches"),
            (Unit::Steps, "every step", "every 2 steps"),
            (Unit::Epochs, "every epoch", "every 2 epochs"),
            (Unit::Records, "every record", "every 2 records"),
        ] {
            assert_eq!([unit.every(1), unit.every(2)], [one, two]);
        }
    }
}
