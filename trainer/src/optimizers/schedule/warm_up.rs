//! Linear warm-up.

use super::{Schedule, between, check_factor};
use crate::error::Result;
use crate::values::amount::Amount;
use crate::values::facts::SettingList;

/// A linear warm-up, followed by a schedule that counts its steps from the end of the warm-up: see
/// [`Schedule::warm_up`].
///
/// For N steps, the factor is the first factor of the schedule times `start + (1 - start) · n / N`.
/// The start defaults to `1 / (N + 1)`, so that all increments are equal and no step has a learning
/// rate of 0. Introduced in Goyal et al., *Accurate, Large Minibatch SGD: Training ImageNet in 1
/// Hour*, 2017. In PyTorch, this is a `SequentialLR` of a `LinearLR` and the schedule.
///
/// The warm-up precedes the schedule's own length: `Cosine::to(0.0).over(900).warm_up(100)` ends
/// after 1,000 steps. A schedule over the whole run spans the steps that remain after the warm-up.
/// A warm-up that is longer than the run is an error when training starts.
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
#[doc(alias("get_linear_schedule_with_warmup", "warmup_steps"))]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WarmUp<S> {
    over: Amount,
    start: Option<f64>,
    then: S,
}

impl<S> WarmUp<S> {
    pub(super) fn new(over: Amount, then: S) -> Self {
        WarmUp { over, start: None, then }
    }

    /// Sets the factor at step 0, as a fraction of the schedule's first factor. Defaults to
    /// `1 / (N + 1)`.
    #[must_use]
    pub fn starting_at(mut self, start: f64) -> Self {
        self.start = Some(start);
        self
    }
}

impl<S: Schedule> Schedule for WarmUp<S> {
    fn factor(&self, step: u64, run: Option<u64>) -> Result<f64> {
        let steps = self.over.steps(run, ".warm_up({})")?;
        let rest = run.map(|run| run.saturating_sub(steps));
        if step >= steps {
            return self.then.factor(step - steps, rest);
        }
        let start = self.start.unwrap_or(1.0 / (steps as f64 + 1.0));
        let start = check_factor("the start of `warm_up`", start)?;
        Ok(between(start, 1.0, step as f64 / steps as f64) * self.then.factor(0, rest)?)
    }

    fn check(&self, run: Option<u64>) -> Result<()> {
        self.over.check_fits(run, ".warm_up({})")?;
        self.factor(0, run)?;
        let steps = self.over.steps(run, ".warm_up({})")?;
        self.then.check(run.map(|run| run.saturating_sub(steps)))
    }

    fn mistakes(&self) -> Vec<String> {
        let start = self.start.map(|start| check_factor("the start of `warm_up`", start));
        let start = start.and_then(Result::err).map(|error| error.to_string());
        let length = self.over.mistake(".warm_up({})");
        length.into_iter().chain(start).chain(self.then.mistakes()).collect()
    }

    fn settings(&self) -> SettingList {
        let WarmUp { over, start, then } = self;
        let list = SettingList::of("WarmUp").with("over", over).with_optional("start", start.as_ref());
        list.with_all("then", then.settings())
    }
}
