//! The product of two schedules.

use super::Schedule;
use crate::error::Result;
use crate::values::facts::SettingList;

/// The product of two schedules: see [`Schedule::times`].
///
/// Corresponds to `torch.optim.lr_scheduler.ChainedScheduler` for schedulers that multiply the
/// current learning rate. `CosineAnnealingWarmRestarts` and `OneCycleLR` start from the base
/// learning rate instead, so in PyTorch they discard the effect of the schedulers before them; here
/// they are factors like all others.
///
/// ```
/// use trainer::prelude::*;
/// use trainer::schedule::{Linear, StepDecay};
///
/// let schedule = Linear::to(0.0).over(4).times(StepDecay::new(2, 0.5));
/// let factors: Result<Vec<f64>> = (0..4).map(|step| schedule.factor(step, None)).collect();
/// assert_eq!(factors?, [1.0, 0.75, 0.25, 0.125]);
/// # Ok::<(), trainer::Error>(())
/// ```
#[doc(alias = "ChainedScheduler")]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Product<A, B>(A, B);

impl<A, B> Product<A, B> {
    pub(super) fn new(one: A, other: B) -> Self {
        Product(one, other)
    }
}

impl<A: Schedule, B: Schedule> Schedule for Product<A, B> {
    fn factor(&self, step: u64, run: Option<u64>) -> Result<f64> {
        Ok(self.0.factor(step, run)? * self.1.factor(step, run)?)
    }

    fn check(&self, run: Option<u64>) -> Result<()> {
        self.0.check(run)?;
        self.1.check(run)
    }

    fn mistakes(&self) -> Vec<String> {
        self.0.mistakes().into_iter().chain(self.1.mistakes()).collect()
    }

    fn settings(&self) -> SettingList {
        let Product(one, other) = self;
        SettingList::of("Product").with_all("0", one.settings()).with_all("1", other.settings())
    }
}
