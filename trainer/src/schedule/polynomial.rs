//! A power of the line down to 0.

use super::{Length, Schedule};
use crate::error::{Error, Result};

/// A power of the line from 1 down to 0 over N steps: `(1 - min(n, N) / N)^power`.
///
/// `torch.optim.lr_scheduler.PolynomialLR`, which goes over 5 steps unless it is told otherwise; this goes over the whole run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Polynomial {
    power: f64,
    over: Length,
}

impl Polynomial {
    /// With this power: 1 is the line itself.
    #[must_use]
    pub fn new(power: f64) -> Self {
        Polynomial { power, over: Length::WHOLE }
    }

    /// In so long; the whole run unless set.
    #[must_use]
    pub fn over(mut self, length: impl Into<Length>) -> Self {
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
        let steps = self.over.at_least_one_of(run, "Polynomial::over")?;
        Ok((1.0 - step.min(steps) as f64 / steps as f64).powf(self.power))
    }
}
