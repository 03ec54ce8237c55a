//! How long something takes.

use std::fmt;

use crate::error::{Error, Result};

/// How long: a number of steps, `500`, or a share of the run, `0.1`.
///
/// The steps are optimizer steps, or epochs [`by_epoch`](crate::hooks::LrSchedule::by_epoch). Within a schedule that is part of
/// another the run is the time that it has there: what follows a warm-up has the rest.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Length(Amount);

#[derive(Clone, Copy, Debug, PartialEq)]
enum Amount {
    /// Checked when training begins: a negative one is a mistake.
    Steps(i128),
    Share(f64),
}

macro_rules! numbers_of_steps {
    ($($number:ty),*) => {$(
        impl From<$number> for Length {
            fn from(steps: $number) -> Self {
                Length(Amount::Steps(steps as i128))
            }
        }
    )*};
}

numbers_of_steps!(i32, i64, u32, u64, usize);

impl From<f64> for Length {
    fn from(share: f64) -> Self {
        Length(Amount::Share(share))
    }
}

impl fmt::Display for Length {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Amount::Steps(steps) => write!(f, "{steps}"),
            Amount::Share(share) => write!(f, "{share:?}"),
        }
    }
}

impl Length {
    /// All of the run.
    pub(super) const WHOLE: Length = Length(Amount::Share(1.0));

    /// How many steps that is, in a run of so many if that is known. A share of a short run may be none.
    pub(super) fn of(self, run: Option<u64>, setting: &str) -> Result<u64> {
        match (self.0, run) {
            (Amount::Steps(steps), _) if steps > 0 => Ok(u64::try_from(steps).unwrap_or(u64::MAX)),
            (Amount::Steps(_), _) => {
                Err(Error::usage(format!("`{setting}({self})`: expected a number of steps of at least 1")))
            }
            (Amount::Share(share), _) if !(share > 0.0 && share <= 1.0) => {
                let hint = if share > 1.0 && share.fract() == 0.0 && share < 1e9 {
                    format!("; for a number of steps, write `{share}` without the point")
                } else {
                    String::new()
                };
                let expected = "expected a share above 0.0 and at most 1.0";
                Err(Error::usage(format!("`{setting}({self})`: {expected}{hint}")))
            }
            (Amount::Share(share), Some(run)) => Ok((share * run as f64).round() as u64),
            (Amount::Share(_), None) => Err(Error::usage(format!(
                "`{setting}({self})` is a share of the run, and how long that is is not known, because the loader does not \
                 say how many batches it has, or the builder was given no number of epochs: give a number of steps instead, \
                 `{setting}(1000)`"
            ))),
        }
    }

    /// The same for what cannot be nothing.
    pub(super) fn at_least_one_of(self, run: Option<u64>, setting: &str) -> Result<u64> {
        self.of(run, setting).map(|steps| steps.max(1))
    }

    /// Tells what is not before the next of its kind. Shares may fall on the same step of a short run.
    pub(super) fn is_before(self, next: Length, run: Option<u64>, setting: &str) -> Result<()> {
        let is_before = match (self.0, next.0) {
            (Amount::Steps(own), Amount::Steps(next)) => own < next,
            (Amount::Share(own), Amount::Share(next)) => own < next,
            _ => self.of(run, setting)? <= next.of(run, setting)?,
        };
        if is_before {
            return Ok(());
        }
        Err(Error::usage(format!("`{setting}`: {next} comes after {self}: expected rising steps, each once")))
    }

    /// Tells what does not fit into the run.
    pub(super) fn fits(self, run: Option<u64>, setting: &str) -> Result<()> {
        let steps = self.of(run, setting)?;
        match run {
            Some(run) if steps > run => Err(Error::usage(format!(
                "`{setting}({self})` goes beyond its run of {run} steps: give fewer, or a share, `{setting}(0.1)`"
            ))),
            _ => Ok(()),
        }
    }
}
