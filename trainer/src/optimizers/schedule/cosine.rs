//! Cosine annealing.

use super::{Schedule, between, check_factor, half_wave, mistake};
use crate::error::Result;
use crate::values::amount::Amount;
use crate::values::facts::SettingList;

/// Half a cosine wave that falls from 1 to the final factor, `end`, over N steps:
/// `end + (1 - end) · (1 + cos(π · min(n, N) / N)) / 2`.
///
/// Use this when you have no reason to choose another schedule. For a transformer, add a
/// [`warm_up`](super::Schedule::warm_up).
///
/// Introduced in Loshchilov and Hutter, *SGDR: Stochastic Gradient Descent with Warm Restarts*,
/// 2017; this schedule has no restarts. Corresponds to `torch.optim.lr_scheduler.CosineAnnealingLR`
/// for the first `T_max` steps. After that, PyTorch's schedule rises again, whereas this schedule
/// keeps its last value.
///
/// ```
/// use trainer::hooks::HyperparameterSchedule;
/// use trainer::prelude::*;
/// use trainer::schedule::Cosine;
///
/// let schedule = Cosine::to(0.1); // over the whole run
/// assert_eq!(schedule.factor(0, Some(1000))?, 1.0);
/// assert_eq!(schedule.factor(1000, Some(1000))?, 0.1);
/// let hook = HyperparameterSchedule::lr(schedule.warm_up(100));
/// # Ok::<(), trainer::Error>(())
/// ```
#[doc(alias = "CosineAnnealingLR")]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cosine {
    end: f64,
    over: Amount,
}

impl Cosine {
    /// Creates the schedule with this final factor.
    #[must_use]
    pub fn to(end: f64) -> Self {
        Cosine { end, over: Amount::WHOLE }
    }

    /// Sets the length of the schedule. Defaults to the whole run.
    #[must_use]
    pub fn over(mut self, length: impl Into<Amount>) -> Self {
        self.over = length.into();
        self
    }
}

impl Schedule for Cosine {
    fn factor(&self, step: u64, run: Option<u64>) -> Result<f64> {
        let end = check_factor("the end of `Cosine`", self.end)?;
        let steps = self.over.steps_at_least_1(run, "Cosine::to(…).over({})")?;
        Ok(between(end, 1.0, half_wave(step.min(steps) as f64 / steps as f64)))
    }

    fn mistakes(&self) -> Vec<String> {
        mistake(self)
    }

    fn settings(&self) -> SettingList {
        let Cosine { end, over } = self;
        SettingList::of("Cosine").with("end", end).with("over", over)
    }
}
