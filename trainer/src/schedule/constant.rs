//! One factor.

use super::{Length, Schedule, is_factor};
use crate::error::Result;

/// One factor, for good or for a while: `factor` up to step N, then 1.
///
/// `torch.optim.lr_scheduler.ConstantLR`, which is for 5 steps unless it is told otherwise; this is for the whole run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Constant {
    factor: f64,
    over: Option<Length>,
}

impl Constant {
    /// This factor: 1 for the optimizer's learning rate itself.
    #[must_use]
    pub fn new(factor: f64) -> Self {
        Constant { factor, over: None }
    }

    /// For so long; the factor is 1 from then on.
    #[must_use]
    pub fn over(mut self, length: impl Into<Length>) -> Self {
        self.over = Some(length.into());
        self
    }
}

impl Schedule for Constant {
    fn factor(&self, step: u64, run: Option<u64>) -> Result<f64> {
        let factor = is_factor("the factor of `Constant`", self.factor)?;
        match self.over {
            Some(over) if step >= over.of(run, "Constant::over")? => Ok(1.0),
            _ => Ok(factor),
        }
    }
}
