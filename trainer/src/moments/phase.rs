//! Phases: the kinds of passes over data.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The kind of pass over data that is running.
#[doc(alias = "RunningStage")]
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Training.
    Train,
    /// The sanity check: a few batches of validation before training.
    Sanity,
    /// Validation.
    Valid,
    /// Testing.
    Test,
    /// Prediction.
    Predict,
}

impl Phase {
    /// Every phase.
    pub const ALL: [Phase; 5] = [Phase::Train, Phase::Sanity, Phase::Valid, Phase::Test, Phase::Predict];

    /// Returns the name of the phase, as used in `#[hook(only = …)]` and in metric names.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Phase::Train => "train",
            Phase::Sanity => "sanity",
            Phase::Valid => "valid",
            Phase::Test => "test",
            Phase::Predict => "predict",
        }
    }

    /// Returns the name of the entry point that runs in this phase.
    pub(crate) const fn entry(self) -> &'static str {
        match self {
            Phase::Train => "fit",
            Phase::Sanity | Phase::Valid => "validate",
            Phase::Test => "test",
            Phase::Predict => "predict",
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A set of phases.
///
/// ```
/// use trainer::{Phase, PhaseSet};
///
/// let phases = PhaseSet::from([Phase::Valid, Phase::Test]);
/// assert!(phases.contains(Phase::Test));
/// assert!(!phases.contains(Phase::Train));
/// ```
#[derive(Clone, Copy, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(from = "Vec<Phase>", into = "Vec<Phase>")]
pub struct PhaseSet(u8);

impl PhaseSet {
    /// The empty set.
    pub const NONE: PhaseSet = PhaseSet(0);

    /// Creates the set of these phases.
    #[must_use]
    pub const fn from_phases(phases: &[Phase]) -> Self {
        let mut bits = 0;
        let mut i = 0;
        while i < phases.len() {
            bits |= 1 << phases[i] as u8;
            i += 1;
        }
        PhaseSet(bits)
    }

    /// Returns whether the set contains the phase.
    #[must_use]
    pub const fn contains(self, phase: Phase) -> bool {
        self.0 & (1 << phase as u8) != 0
    }

    /// Returns this set with one more phase.
    #[must_use]
    pub const fn with(self, phase: Phase) -> Self {
        PhaseSet(self.0 | (1 << phase as u8))
    }

    /// Returns the intersection with another set.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        PhaseSet(self.0 & other.0)
    }

    /// Returns the union with another set.
    #[must_use]
    pub const fn or(self, other: Self) -> Self {
        PhaseSet(self.0 | other.0)
    }

    /// Returns the phases of the set, in the order of [`Phase::ALL`].
    pub fn iter(self) -> impl Iterator<Item = Phase> {
        Phase::ALL.into_iter().filter(move |&phase| self.contains(phase))
    }
}

impl From<Phase> for PhaseSet {
    fn from(phase: Phase) -> Self {
        PhaseSet::NONE.with(phase)
    }
}

impl<const N: usize> From<[Phase; N]> for PhaseSet {
    fn from(phases: [Phase; N]) -> Self {
        PhaseSet::from_phases(&phases)
    }
}

impl From<Vec<Phase>> for PhaseSet {
    fn from(phases: Vec<Phase>) -> Self {
        PhaseSet::from_phases(&phases)
    }
}

impl From<PhaseSet> for Vec<Phase> {
    fn from(phases: PhaseSet) -> Self {
        phases.iter().collect()
    }
}

impl fmt::Display for PhaseSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.iter().map(Phase::name).collect::<Vec<_>>().join(" "))
    }
}

impl fmt::Debug for PhaseSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

/// A phase as a type: `trainer::phase::train`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a phase",
    note = "the phases are `train`, `sanity`, `valid`, `test` and `predict`"
)]
pub trait PhaseMarker {
    /// The phase as a value.
    const PHASE: Phase;
}

macro_rules! markers {
    ($($marker:ident $phase:ident,)*) => {$(
        #[doc = concat!("The phase `", stringify!($marker), "`, as a type.")]
        #[allow(non_camel_case_types)]
        #[derive(Debug)]
        pub enum $marker {}

        impl PhaseMarker for $marker {
            const PHASE: Phase = Phase::$phase;
        }
    )*};
}

markers! { train Train, sanity Sanity, valid Valid, test Test, predict Predict, }
