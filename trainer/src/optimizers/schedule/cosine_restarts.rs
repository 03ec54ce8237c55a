//! Cosine annealing with warm restarts.

use super::{Schedule, between, check_factor, half_wave, mistake};
use crate::error::{Error, Result};
use crate::values::amount::Amount;
use crate::values::facts::SettingList;

/// Half a cosine wave that falls from 1 to `end` and is repeated in cycles. The factor at step t of
/// a cycle of T steps is `end + (1 - end) · (1 + cos(π · t / T)) / 2`. Each cycle can be longer
/// than the previous one by a constant factor.
///
/// Use this when you want several cycles in a run, for example to save the model at the end of each
/// cycle.
///
/// Introduced in Loshchilov and Hutter, *SGDR: Stochastic Gradient Descent with Warm Restarts*,
/// 2017. Corresponds to `torch.optim.lr_scheduler.CosineAnnealingWarmRestarts`.
///
/// ```
/// use trainer::prelude::*;
/// use trainer::schedule::CosineRestarts;
///
/// let schedule = CosineRestarts::every(100).growing(2); // cycles of 100, 200, 400, … steps
/// for start in [0, 100, 300, 700] {
///     assert_eq!(schedule.factor(start, None)?, 1.0);
/// }
/// assert!((schedule.factor(200, None)? - 0.5).abs() < 1e-9);
/// # Ok::<(), trainer::Error>(())
/// ```
#[doc(alias = "CosineAnnealingWarmRestarts")]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CosineRestarts {
    first: Amount,
    growth: u64,
    end: f64,
}

impl CosineRestarts {
    /// Creates the schedule with a first cycle of this length. Each cycle ends at 0.
    #[doc(alias = "T_0")]
    #[must_use]
    pub fn every(length: impl Into<Amount>) -> Self {
        CosineRestarts { first: length.into(), growth: 1, end: 0.0 }
    }

    /// Makes each cycle `times` times as long as the previous one. `times` must be at least 1, and
    /// corresponds to PyTorch's `T_mult`. Defaults to 1.
    #[doc(alias = "T_mult")]
    #[must_use]
    pub fn growing(mut self, times: u64) -> Self {
        self.growth = times;
        self
    }

    /// Sets the factor at the end of each cycle. Defaults to 0.
    #[must_use]
    pub fn to(mut self, end: f64) -> Self {
        self.end = end;
        self
    }
}

impl Schedule for CosineRestarts {
    fn factor(&self, mut step: u64, run: Option<u64>) -> Result<f64> {
        let end = check_factor("the end of `CosineRestarts`", self.end)?;
        let mut cycle = self.first.steps_at_least_1(run, "CosineRestarts::every({})")?;
        match self.growth {
            0 => return Err(Error::usage("`CosineRestarts::every(…).growing(0)`: expected at least 1")),
            1 => step %= cycle,
            growth => {
                // The number of cycles is logarithmic in the step.
                while step >= cycle {
                    step -= cycle;
                    cycle = cycle.saturating_mul(growth);
                }
            }
        }
        Ok(between(end, 1.0, half_wave(step as f64 / cycle as f64)))
    }

    fn mistakes(&self) -> Vec<String> {
        mistake(self)
    }

    fn settings(&self) -> SettingList {
        let CosineRestarts { first, growth, end } = self;
        SettingList::of("CosineRestarts").with("first", first).with("growth", growth).with("end", end)
    }
}
