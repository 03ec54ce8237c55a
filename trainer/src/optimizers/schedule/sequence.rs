//! A sequence of schedules.

use std::fmt;

use super::Schedule;
use crate::error::Result;
use crate::values::amount::Amount;
use crate::values::facts::SettingList;

/// A sequence of schedules, each of which counts steps from its own start: see [`Schedule::then`].
///
/// Corresponds to `torch.optim.lr_scheduler.SequentialLR`. The run of each schedule ends where the
/// next one starts. The steps or fractions at which the schedules start are relative to the start
/// of the first schedule, and must increase.
///
/// ```
/// use trainer::prelude::*;
/// use trainer::schedule::{Constant, Linear};
///
/// # fn main() -> Result<()> {
/// let schedule = Constant::new(1.0).then(2, Linear::to(0.5)).then(4, Constant::new(0.1));
/// let factors: Result<Vec<f64>> = (0..6).map(|step| schedule.factor(step, None)).collect();
/// assert_eq!(factors?, [1.0, 1.0, 1.0, 0.75, 0.1, 0.1]);
/// # Ok(())
/// # }
/// ```
#[doc(alias = "SequentialLR")]
pub struct Sequence {
    first: Box<dyn Schedule>,
    /// The other schedules, each with its first step.
    rest: Vec<(Amount, Box<dyn Schedule>)>,
}

impl Sequence {
    pub(super) fn new(first: impl Schedule) -> Self {
        Sequence { first: Box::new(first), rest: Vec::new() }
    }

    pub(super) fn and(mut self, at: Amount, next: impl Schedule) -> Self {
        self.rest.push((at, Box::new(next)));
        self
    }
}

impl Schedule for Sequence {
    fn factor(&self, step: u64, run: Option<u64>) -> Result<f64> {
        let mut current = &self.first;
        let mut begun = 0;
        for (at, next) in &self.rest {
            let at = at.steps(run, ".then({}, …)")?;
            if step < at {
                return current.factor(step - begun, Some(at - begun));
            }
            current = next;
            begun = at;
        }
        current.factor(step - begun, run.map(|run| run.saturating_sub(begun)))
    }

    fn check(&self, run: Option<u64>) -> Result<()> {
        for pair in self.rest.windows(2) {
            pair[0].0.check_before(pair[1].0, run, ".then({}, …)")?;
        }
        let mut current = &self.first;
        let mut begun = 0;
        for (at, next) in &self.rest {
            at.check_fits(run, ".then({}, …)")?;
            let at = at.steps(run, ".then({}, …)")?;
            current.check(Some(at.saturating_sub(begun)))?;
            current = next;
            begun = at;
        }
        current.check(run.map(|run| run.saturating_sub(begun)))
    }

    /// Appends to this sequence: `at` is relative to the start of the first schedule, not of the
    /// last one.
    fn then(self, at: impl Into<Amount>, next: impl Schedule) -> Sequence {
        self.and(at.into(), next)
    }

    fn mistakes(&self) -> Vec<String> {
        let steps = self.rest.iter().filter_map(|(at, _)| at.mistake(".then({}, …)"));
        let schedules = [&self.first].into_iter().chain(self.rest.iter().map(|(_, next)| next));
        let pairs = self.rest.windows(2);
        let disordered = pairs.filter_map(|pair| pair[0].0.order_mistake(pair[1].0, ".then({}, …)"));
        steps.chain(disordered).chain(schedules.flat_map(|schedule| schedule.mistakes())).collect()
    }

    fn settings(&self) -> SettingList {
        let Sequence { first, rest } = self;
        let list = SettingList::of("Sequential").with_all("0", first.settings());
        (1..).zip(rest).fold(list, |list, (nth, (at, next))| {
            list.with(&format!("{nth}.at"), at).with_all(&nth.to_string(), next.settings())
        })
    }
}

impl fmt::Debug for Sequence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let begin: Vec<_> = self.rest.iter().map(|(at, _)| at).collect();
        f.debug_struct("Sequence").field("begin", &begin).finish_non_exhaustive()
    }
}
