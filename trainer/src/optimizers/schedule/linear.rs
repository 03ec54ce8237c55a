//! A straight line.

use super::{Schedule, between, check_factor, mistake};
use crate::error::Result;
use crate::values::amount::Amount;
use crate::values::facts::SettingList;

/// A straight line over N steps: `start + (end - start) · min(n, N) / N`.
///
/// Use this when you fine-tune with a linear decay, as is common for BERT.
///
/// Corresponds to `torch.optim.lr_scheduler.LinearLR`, which by default rises from 1/3 to 1 over 5
/// steps; this schedule starts at 1 by default and spans the whole run.
///
/// ```
/// use trainer::prelude::*;
/// use trainer::schedule::Linear;
///
/// let schedule = Linear::to(0.0).over(4);
/// let factors: Result<Vec<f64>> = (0..6).map(|step| schedule.factor(step, None)).collect();
/// assert_eq!(factors?, [1.0, 0.75, 0.5, 0.25, 0.0, 0.0]);
/// # Ok::<(), trainer::Error>(())
/// ```
#[doc(alias = "LinearLR")]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Linear {
    start: f64,
    end: f64,
    over: Amount,
}

impl Linear {
    /// Creates the schedule with this final factor. It starts at 1.
    #[must_use]
    pub fn to(end: f64) -> Self {
        Linear { start: 1.0, end, over: Amount::WHOLE }
    }

    /// Sets the initial factor. Defaults to 1.
    #[must_use]
    pub fn starting_at(mut self, start: f64) -> Self {
        self.start = start;
        self
    }

    /// Sets the length of the schedule. Defaults to the whole run.
    #[must_use]
    pub fn over(mut self, length: impl Into<Amount>) -> Self {
        self.over = length.into();
        self
    }
}

impl Schedule for Linear {
    fn factor(&self, step: u64, run: Option<u64>) -> Result<f64> {
        let start = check_factor("the start of `Linear`", self.start)?;
        let end = check_factor("the end of `Linear`", self.end)?;
        let steps = self.over.steps_at_least_1(run, "Linear::to(…).over({})")?;
        Ok(between(start, end, step.min(steps) as f64 / steps as f64))
    }

    fn mistakes(&self) -> Vec<String> {
        mistake(self)
    }

    fn settings(&self) -> SettingList {
        let Linear { start, end, over } = self;
        SettingList::of("Linear").with("start", start).with("end", end).with("over", over)
    }
}
