//! Durations within a run.

use std::fmt;

use crate::error::{Error, Result};

/// A duration: a number of steps, `500`, or a fraction of the run, `0.1`.
///
/// The steps are optimizer steps, or epochs with [`by_epoch`](crate::hooks::LrSchedule::by_epoch).
/// In a schedule nested in another one, fractions refer to the steps assigned to it: after a
/// warm-up, for example, to the remaining ones.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Length(Amount);

#[derive(Clone, Copy, Debug, PartialEq)]
enum Amount {
    /// A number of steps. Signed, so that a negative number is an error when training starts.
    Steps(i128),
    Fraction(f64),
}

macro_rules! from_integers {
    ($($number:ty),*) => {$(
        impl From<$number> for Length {
            fn from(steps: $number) -> Self {
                Length(Amount::Steps(steps as i128))
            }
        }
    )*};
}

from_integers!(i32, i64, u32, u64, usize);

impl From<f64> for Length {
    fn from(fraction: f64) -> Self {
        Length(Amount::Fraction(fraction))
    }
}

impl fmt::Display for Length {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Amount::Steps(steps) => write!(f, "{steps}"),
            Amount::Fraction(fraction) => write!(f, "{fraction:?}"),
        }
    }
}

impl Length {
    /// The whole run.
    pub(super) const WHOLE: Length = Length(Amount::Fraction(1.0));

    /// Returns the number of steps, given the number of steps in the run if it is known. A fraction
    /// of a short run may be 0 steps. Errors contain the name of the setting.
    pub(super) fn resolve(self, run: Option<u64>, setting: &str) -> Result<u64> {
        match (self.0, run) {
            (Amount::Steps(steps), _) if steps > 0 => Ok(u64::try_from(steps).unwrap_or(u64::MAX)),
            (Amount::Steps(_), _) => {
                Err(Error::usage(format!("`{setting}({self})`: expected a number of steps of at least 1")))
            }
            (Amount::Fraction(fraction), _) if !(fraction > 0.0 && fraction <= 1.0) => {
                let hint = if fraction > 1.0 && fraction.fract() == 0.0 && fraction < 1e9 {
                    format!("; for a number of steps, write `{fraction}` without the point")
                } else {
                    String::new()
                };
                let expected = "expected a fraction above 0.0 and at most 1.0";
                Err(Error::usage(format!("`{setting}({self})`: {expected}{hint}")))
            }
            (Amount::Fraction(fraction), Some(run)) => Ok((fraction * run as f64).round() as u64),
            (Amount::Fraction(_), None) => Err(Error::usage(format!(
                "`{setting}({self})` is a fraction of the run, whose length is unknown, because the loader does not report \
                 how many batches it has, or the builder was given no number of epochs: use a number of steps instead, \
                 `{setting}(1000)`"
            ))),
        }
    }

    /// Returns the number of steps like [`resolve`](Length::resolve), but at least 1.
    pub(super) fn resolve_at_least_1(self, run: Option<u64>, setting: &str) -> Result<u64> {
        self.resolve(run, setting).map(|steps| steps.max(1))
    }

    /// Returns an error unless this is before `next`. Different fractions of a short run may be the
    /// same step.
    pub(super) fn check_before(self, next: Length, run: Option<u64>, setting: &str) -> Result<()> {
        let is_before = match (self.0, next.0) {
            (Amount::Steps(own), Amount::Steps(next)) => own < next,
            (Amount::Fraction(own), Amount::Fraction(next)) => own < next,
            _ => self.resolve(run, setting)? <= next.resolve(run, setting)?,
        };
        if is_before {
            return Ok(());
        }
        Err(Error::usage(format!("`{setting}`: {next} follows {self}: expected strictly increasing steps")))
    }

    /// Returns an error if the length exceeds the run.
    pub(super) fn check_fits(self, run: Option<u64>, setting: &str) -> Result<()> {
        let steps = self.resolve(run, setting)?;
        match run {
            Some(run) if steps > run => Err(Error::usage(format!(
                "`{setting}({self})` exceeds the run of {run} steps: use fewer steps, or a fraction, `{setting}(0.1)`"
            ))),
            _ => Ok(()),
        }
    }
}
