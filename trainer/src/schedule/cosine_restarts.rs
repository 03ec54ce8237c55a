//! Half a cosine wave, again and again.

use super::{Length, Schedule, between, half_wave, is_factor};
use crate::error::{Error, Result};

/// Half a cosine wave from 1 down, again and again: `end + (1 - end) · (1 + cos(π · t / T)) / 2` at step t of a cycle of T steps,
/// each so many times as long as the one before.
///
/// Loshchilov and Hutter, *SGDR: Stochastic Gradient Descent with Warm Restarts*, 2017.
/// `torch.optim.lr_scheduler.CosineAnnealingWarmRestarts`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CosineRestarts {
    first: Length,
    growth: u64,
    end: f64,
}

impl CosineRestarts {
    /// In cycles of this length, down to 0.
    #[must_use]
    pub fn every(length: impl Into<Length>) -> Self {
        CosineRestarts { first: length.into(), growth: 1, end: 0.0 }
    }

    /// Each cycle is so many times as long as the one before; as long unless set.
    #[must_use]
    pub fn growing(mut self, times: u64) -> Self {
        self.growth = times;
        self
    }

    /// Down to this factor instead of 0.
    #[must_use]
    pub fn to(mut self, end: f64) -> Self {
        self.end = end;
        self
    }
}

impl Schedule for CosineRestarts {
    fn factor(&self, step: u64, run: Option<u64>) -> Result<f64> {
        let end = is_factor("the end of `CosineRestarts`", self.end)?;
        let (mut cycle, mut step) = (self.first.at_least_one_of(run, "CosineRestarts::every")?, step);
        match self.growth {
            0 => return Err(Error::usage("`CosineRestarts::growing(0)`: expected at least 1")),
            1 => step %= cycle,
            growth => {
                // As many rounds as there were cycles: the logarithm of the step.
                while step >= cycle {
                    step -= cycle;
                    cycle = cycle.saturating_mul(growth);
                }
            }
        }
        Ok(between(end, 1.0, half_wave(step as f64 / cycle as f64)))
    }
}
