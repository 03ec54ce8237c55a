//! Keys whose settings come from fields of the hook's value: `of = self.modules`,
//! `every = self.every`, `only = self.phases`.

use std::any::Any;
use std::num::{NonZeroU32, NonZeroU64};

use crate::modules::{AsPatterns, ModulePattern, Patterns};
use crate::phase::{Phase, PhaseSet};

/// The modules, interval and phases that a value selects for one of its hooks; `None` for keys not
/// set to `self.<field>`.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct Selected {
    pub(crate) modules: Option<Vec<ModulePattern>>,
    pub(crate) every: Option<u64>,
    pub(crate) phases: Option<PhaseSet>,
}

/// A function that returns the modules, interval and phases that a value selects for one of its
/// hooks.
pub(crate) type SelectedOf = fn(&(dyn Any + Send)) -> Selected;

impl Selected {
    /// Selects everything.
    pub fn all() -> Self {
        Selected::default()
    }

    /// Selects modules.
    pub fn of(mut self, field: &impl AsPatterns) -> Self {
        let Patterns(modules) = field.patterns();
        self.modules = Some(modules);
        self
    }

    /// Selects an interval.
    pub fn every(mut self, n: &impl AsInterval) -> Self {
        self.every = n.interval();
        self
    }

    /// Selects phases.
    pub fn only(mut self, phases: &impl AsPhases) -> Self {
        self.phases = Some(phases.phases());
        self
    }
}

/// A type that `every` accepts: an unsigned integer, or an `Option` of one.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a valid interval for `every`",
    label = "expected an unsigned integer",
    note = "`every` takes a number of batches, optimizer steps, epochs or records, whichever the moment counts: a `u32`, a \
            `u64`, a `usize`, or an `Option` of one"
)]
pub trait AsInterval {
    /// Returns the interval; `None` means every time.
    fn interval(&self) -> Option<u64>;
}

macro_rules! intervals {
    ($($integer:ty),+) => {$(
        #[diagnostic::do_not_recommend]
        impl AsInterval for $integer {
            fn interval(&self) -> Option<u64> {
                Some(u64::try_from(*self).unwrap_or(0)) // rejected by `build`
            }
        }
    )+};
}

// `i32` is the type of an integer literal.
intervals!(i32, u8, u16, u32, u64, usize);

#[diagnostic::do_not_recommend]
impl AsInterval for NonZeroU32 {
    fn interval(&self) -> Option<u64> {
        Some(u64::from(self.get()))
    }
}

#[diagnostic::do_not_recommend]
impl AsInterval for NonZeroU64 {
    fn interval(&self) -> Option<u64> {
        Some(self.get())
    }
}

#[diagnostic::do_not_recommend]
impl<T: AsInterval> AsInterval for Option<T> {
    fn interval(&self) -> Option<u64> {
        self.as_ref()?.interval()
    }
}

/// A type that is allowed for a field with `only`: a `PhaseSet`, a `Phase`, or a `Vec` or array of
/// phases.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a set of phases",
    label = "expected `PhaseSet`, `Phase` or a list of `Phase`",
    note = "store a `trainer::PhaseSet` in the hook, and name its field: `only = self.phases`"
)]
pub trait AsPhases {
    /// Returns the phases.
    fn phases(&self) -> PhaseSet;
}

#[diagnostic::do_not_recommend]
impl AsPhases for PhaseSet {
    fn phases(&self) -> PhaseSet {
        *self
    }
}

#[diagnostic::do_not_recommend]
impl AsPhases for Phase {
    fn phases(&self) -> PhaseSet {
        PhaseSet::NONE.with(*self)
    }
}

#[diagnostic::do_not_recommend]
impl AsPhases for Vec<Phase> {
    fn phases(&self) -> PhaseSet {
        PhaseSet::from_phases(self)
    }
}

#[diagnostic::do_not_recommend]
impl<const N: usize> AsPhases for [Phase; N] {
    fn phases(&self) -> PhaseSet {
        PhaseSet::from_phases(self)
    }
}
