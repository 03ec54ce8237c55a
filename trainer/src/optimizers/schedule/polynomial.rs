//! Polynomial decay.

use super::{Schedule, mistake};
use crate::error::{Error, Result};
use crate::values::amount::Amount;
use crate::values::facts::SettingList;

/// Polynomial decay from 1 to 0 over N steps: `(1 - min(n, N) / N)^power`.
///
/// Use this when the learning rate should reach 0 at the end, faster or slower than along a
/// straight line.
///
/// Corresponds to `torch.optim.lr_scheduler.PolynomialLR`, which defaults to 5 steps; this schedule
/// defaults to the whole run.
///
/// ```
/// use trainer::prelude::*;
/// use trainer::schedule::Polynomial;
///
/// let schedule = Polynomial::new(2.0).over(2);
/// let factors: Result<Vec<f64>> = (0..4).map(|step| schedule.factor(step, None)).collect();
/// assert_eq!(factors?, [1.0, 0.25, 0.0, 0.0]);
/// # Ok::<(), trainer::Error>(())
/// ```
#[doc(alias = "PolynomialLR")]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Polynomial {
    power: f64,
    over: Amount,
}

impl Polynomial {
    /// Creates the schedule with this power, which must be above 0. With a power of 1, the decay is
    /// linear.
    #[must_use]
    pub fn new(power: f64) -> Self {
        Polynomial { power, over: Amount::WHOLE }
    }

    /// Sets the length of the schedule. Defaults to the whole run.
    #[must_use]
    pub fn over(mut self, length: impl Into<Amount>) -> Self {
        self.over = length.into();
        self
    }
}

impl Schedule for Polynomial {
    fn factor(&self, step: u64, run: Option<u64>) -> Result<f64> {
        if !(self.power > 0.0 && self.power.is_finite()) {
            let given = self.power;
            return Err(Error::usage(format!(
                "`Polynomial::new({given:?})`: expected a finite power above 0.0"
            )));
        }
        let steps = self.over.steps_at_least_1(run, "Polynomial::new(…).over({})")?;
        Ok((1.0 - step.min(steps) as f64 / steps as f64).powf(self.power))
    }

    fn mistakes(&self) -> Vec<String> {
        mistake(self)
    }

    fn settings(&self) -> SettingList {
        let Polynomial { power, over } = self;
        SettingList::of("Polynomial").with("power", power).with("over", over)
    }
}
