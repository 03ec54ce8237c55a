//! Phases: which pass over which data is running.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Which pass over which data is running.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Hash, Serialize)]
pub enum Phase {
    /// Training.
    Train,
    /// The few batches of validation before training.
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

    /// As it is written in `#[hook(only = …)]` and in metric names.
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
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Some of the phases.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PhaseSet(u8);

impl PhaseSet {
    /// No phase.
    pub const NONE: PhaseSet = PhaseSet(0);

    /// Just these.
    #[must_use]
    pub const fn of(phases: &[Phase]) -> Self {
        let (mut bits, mut i) = (0, 0);
        while i < phases.len() {
            bits |= 1 << phases[i] as u8;
            i += 1;
        }
        PhaseSet(bits)
    }

    /// Is the phase among them?
    #[must_use]
    pub const fn contains(self, phase: Phase) -> bool {
        self.0 & (1 << phase as u8) != 0
    }

    /// These and one more.
    #[must_use]
    pub const fn with(self, phase: Phase) -> Self {
        PhaseSet(self.0 | (1 << phase as u8))
    }

    /// Those that are in both.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        PhaseSet(self.0 & other.0)
    }

    /// Those that are in either.
    #[must_use]
    pub const fn or(self, other: Self) -> Self {
        PhaseSet(self.0 | other.0)
    }

    /// The phases in it, in the order of [`Phase::ALL`].
    pub fn iter(self) -> impl Iterator<Item = Phase> {
        Phase::ALL.into_iter().filter(move |&phase| self.contains(phase))
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
    /// The same as a value.
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
