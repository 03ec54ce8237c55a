//! A line up to a schedule.

use super::{Length, Schedule, between, is_factor};
use crate::error::Result;

/// A line up to a schedule, which begins at its own step 0 after it: [`Schedule::warm_up`].
///
/// Over N steps, up to the first factor of the schedule: that times `start + (1 - start) · n / N`, with a start of `1 / (N + 1)`, so
/// that each step rises as much as the first, and none is lost to a learning rate of 0. Goyal et al., *Accurate, Large Minibatch
/// SGD: Training ImageNet in 1 Hour*, 2017. In PyTorch a `SequentialLR` of a `LinearLR` and the schedule.
///
/// The warm-up comes before the schedule's own length: `Cosine::to(0.0).over(900).warm_up(100)` ends after 1,000 steps. A schedule over
/// the whole run goes over what the warm-up leaves of it.
///
/// ```
/// use trainer::prelude::*;
/// use trainer::schedule::Constant;
///
/// # fn main() -> Result<()> {
/// let schedule = Constant::new(1.0).warm_up(3);
/// let factors: Result<Vec<f64>> = (0..5).map(|step| schedule.factor(step, None)).collect();
/// assert_eq!(factors?, [0.25, 0.5, 0.75, 1.0, 1.0]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WarmUp<S> {
    over: Length,
    start: Option<f64>,
    then: S,
}

impl<S> WarmUp<S> {
    pub(super) fn new(over: Length, then: S) -> Self {
        WarmUp { over, start: None, then }
    }

    /// From this share of the schedule's first factor instead of `1 / (N + 1)`.
    #[must_use]
    pub fn starting_at(mut self, start: f64) -> Self {
        self.start = Some(start);
        self
    }
}

impl<S: Schedule> Schedule for WarmUp<S> {
    fn factor(&self, step: u64, run: Option<u64>) -> Result<f64> {
        let steps = self.over.of(run, "warm_up")?;
        let rest = run.map(|run| run.saturating_sub(steps));
        if step >= steps {
            return self.then.factor(step - steps, rest);
        }
        let start = self.start.unwrap_or(1.0 / (steps as f64 + 1.0));
        let start = is_factor("the start of `warm_up`", start)?;
        Ok(between(start, 1.0, step as f64 / steps as f64) * self.then.factor(0, rest)?)
    }

    fn check(&self, run: Option<u64>) -> Result<()> {
        self.over.fits(run, "warm_up")?;
        self.factor(0, run)?;
        let steps = self.over.of(run, "warm_up")?;
        self.then.check(run.map(|run| run.saturating_sub(steps)))
    }
}
