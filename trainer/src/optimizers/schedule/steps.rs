//! Conversion of an [`Amount`] to a number of steps.

use std::fmt;

use crate::error::{Error, Result};
use crate::values::amount::{Amount, AmountKind, fraction_mistake};

impl Amount {
    /// The whole run.
    pub(super) const WHOLE: Amount = Amount(AmountKind::Fraction(1.0));

    /// Returns the number of steps. `run` is the number of steps in the run, if it is known. A
    /// fraction of a short run may be 0 steps. Errors quote the code `setting`, with `{}` replaced
    /// by the amount.
    pub(super) fn steps(self, run: Option<u64>, setting: &str) -> Result<u64> {
        match (self.0, run) {
            (AmountKind::Number(steps), _) if steps > 0 => Ok(u64::try_from(steps).unwrap_or(u64::MAX)),
            (AmountKind::Number(_), _) => {
                let call = call(setting, self);
                Err(Error::usage(format!("`{call}`: expected a number of steps of at least 1")))
            }
            (AmountKind::Fraction(fraction), _) if fraction_mistake(fraction).is_some() => {
                let mistake = fraction_mistake(fraction).unwrap_or_default();
                Err(Error::usage(format!("`{}`: {mistake}", call(setting, self))))
            }
            (AmountKind::Fraction(fraction), Some(run)) => Ok((fraction * run as f64).round() as u64),
            (AmountKind::Fraction(_), None) => Err(Error::usage(format!(
                "`{}` is a fraction of the run, whose length in steps is unknown, because the loader does not report how many \
                 batches it has, `.epochs(…)` is not set on the builder, or `train_step` takes more steps than \
                 `Task::steps_per_batch` returns: use a number of steps instead, `{}`, or end the run with `.max_steps(…)`",
                call(setting, self),
                call(setting, 1000)
            ))),
        }
    }

    /// Returns a message if `next` is not after this amount, whatever the length of the run. A
    /// number and a fraction can only be compared if the length is known.
    pub(super) fn order_mistake(self, next: Amount, setting: &str) -> Option<String> {
        let is_number = |amount: Amount| matches!(amount.0, AmountKind::Number(_));
        if is_number(self) != is_number(next) {
            return None;
        }
        self.check_before(next, None, setting).err().map(|error| error.to_string())
    }

    /// Returns a message if the amount is invalid in a run of any length.
    pub(super) fn mistake(self, setting: &str) -> Option<String> {
        self.steps(Some(1), setting).err().map(|error| error.to_string())
    }

    /// Returns the number of steps like [`steps`](Amount::steps), but at least 1.
    pub(super) fn steps_at_least_1(self, run: Option<u64>, setting: &str) -> Result<u64> {
        self.steps(run, setting).map(|steps| steps.max(1))
    }

    /// Returns an error unless this amount is before `next`. A number and a fraction may denote the
    /// same step, and so may two different fractions of a short run.
    pub(super) fn check_before(self, next: Amount, run: Option<u64>, setting: &str) -> Result<()> {
        let is_before = match (self.0, next.0) {
            (AmountKind::Number(own), AmountKind::Number(next)) => own < next,
            (AmountKind::Fraction(own), AmountKind::Fraction(next)) => own < next,
            _ => self.steps(run, setting)? <= next.steps(run, setting)?,
        };
        if is_before {
            return Ok(());
        }
        let call = call(setting, "…");
        Err(Error::usage(format!("`{call}`: {next} follows {self}: expected strictly increasing steps")))
    }

    /// Returns an error if the number of steps exceeds the run. A run of unknown length accepts any
    /// number.
    pub(super) fn check_fits(self, run: Option<u64>, setting: &str) -> Result<()> {
        let steps = self.steps(run, setting)?;
        match run {
            Some(run) if steps > run => Err(Error::usage(format!(
                "`{}` exceeds the run of {run} steps: use fewer steps, or a fraction such as `{}`",
                call(setting, self),
                call(setting, 0.1)
            ))),
            _ => Ok(()),
        }
    }
}

/// Returns the code of a setting, with `{}` replaced by this amount.
fn call(setting: &str, amount: impl fmt::Display) -> String {
    setting.replace("{}", &amount.to_string())
}
