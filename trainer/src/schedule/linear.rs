//! A straight line.

use super::{Length, Schedule, between, is_factor};
use crate::error::Result;

/// A straight line over N steps: `start + (end - start) · min(n, N) / N`.
///
/// `torch.optim.lr_scheduler.LinearLR`, which rises from a third to 1 over 5 steps unless it is told otherwise; this begins at 1
/// and goes over the whole run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Linear {
    start: f64,
    end: f64,
    over: Length,
}

impl Linear {
    /// From 1 to this factor.
    #[must_use]
    pub fn to(end: f64) -> Self {
        Linear { start: 1.0, end, over: Length::WHOLE }
    }

    /// From this factor instead of 1.
    #[must_use]
    pub fn starting_at(mut self, start: f64) -> Self {
        self.start = start;
        self
    }

    /// In so long; the whole run unless set.
    #[must_use]
    pub fn over(mut self, length: impl Into<Length>) -> Self {
        self.over = length.into();
        self
    }
}

impl Schedule for Linear {
    fn factor(&self, step: u64, run: Option<u64>) -> Result<f64> {
        let start = is_factor("the start of `Linear`", self.start)?;
        let end = is_factor("the end of `Linear`", self.end)?;
        let steps = self.over.at_least_one_of(run, "Linear::over")?;
        Ok(between(start, end, step.min(steps) as f64 / steps as f64))
    }
}
