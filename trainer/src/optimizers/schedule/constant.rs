//! A constant factor.

use super::{Schedule, check_factor, mistake};
use crate::error::Result;
use crate::values::amount::Amount;
use crate::values::facts::SettingList;

/// A constant factor for the whole run, or for the first N steps, after which the factor is 1.
///
/// Use this when the learning rate should stay constant, after a warm-up or before another
/// schedule.
///
/// Corresponds to `torch.optim.lr_scheduler.ConstantLR`, which defaults to 5 steps; this schedule
/// defaults to the whole run.
///
/// ```
/// use trainer::prelude::*;
/// use trainer::schedule::Constant;
///
/// let schedule = Constant::new(0.5).over(2);
/// let factors: Result<Vec<f64>> = (0..4).map(|step| schedule.factor(step, None)).collect();
/// assert_eq!(factors?, [0.5, 0.5, 1.0, 1.0]);
/// # Ok::<(), trainer::Error>(())
/// ```
#[doc(alias = "ConstantLR")]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Constant {
    factor: f64,
    over: Option<Amount>,
}

impl Constant {
    /// Creates the schedule with this factor. A factor of 1 keeps the optimizer's learning rate.
    #[must_use]
    pub fn new(factor: f64) -> Self {
        Constant { factor, over: None }
    }

    /// Limits the schedule to this length, after which the factor is 1. Defaults to the whole run.
    #[must_use]
    pub fn over(mut self, length: impl Into<Amount>) -> Self {
        self.over = Some(length.into());
        self
    }
}

impl Schedule for Constant {
    fn factor(&self, step: u64, run: Option<u64>) -> Result<f64> {
        let factor = check_factor("the factor of `Constant`", self.factor)?;
        match self.over {
            Some(over) if step >= over.steps(run, "Constant::new(…).over({})")? => Ok(1.0),
            _ => Ok(factor),
        }
    }

    fn mistakes(&self) -> Vec<String> {
        mistake(self)
    }

    fn settings(&self) -> SettingList {
        let Constant { factor, over } = self;
        SettingList::of("Constant").with("factor", factor).with_optional("over", over.as_ref())
    }
}
