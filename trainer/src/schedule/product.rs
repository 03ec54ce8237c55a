//! One schedule on top of the other.

use super::Schedule;
use crate::error::Result;

/// The product of two schedules: [`Schedule::times`].
///
/// `torch.optim.lr_scheduler.ChainedScheduler`, where its schedulers multiply what they find; those that set it from the base,
/// `CosineAnnealingWarmRestarts` and `OneCycleLR`, undo there what came before them, and are a factor like any other here.
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
}
