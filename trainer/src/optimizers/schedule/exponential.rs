//! Exponential decay.

use super::{Schedule, check_factor, mistake};
use crate::error::Result;
use crate::values::facts::SettingList;

/// A factor that is multiplied by gamma at every step: `gammaⁿ`.
///
/// Use this when the learning rate should fall steadily, regardless of the length of the run.
///
/// Corresponds to `torch.optim.lr_scheduler.ExponentialLR`.
///
/// ```
/// use trainer::prelude::*;
/// use trainer::schedule::Exponential;
///
/// let schedule = Exponential::new(0.5);
/// let factors: Result<Vec<f64>> = (0..4).map(|step| schedule.factor(step, None)).collect();
/// assert_eq!(factors?, [1.0, 0.5, 0.25, 0.125]);
/// # Ok::<(), trainer::Error>(())
/// ```
#[doc(alias = "ExponentialLR")]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Exponential {
    gamma: f64,
}

impl Exponential {
    /// Creates the schedule with this gamma.
    #[must_use]
    pub fn new(gamma: f64) -> Self {
        Exponential { gamma }
    }
}

impl Schedule for Exponential {
    fn factor(&self, step: u64, _: Option<u64>) -> Result<f64> {
        Ok(check_factor("the gamma of `Exponential`", self.gamma)?.powf(step as f64))
    }

    fn mistakes(&self) -> Vec<String> {
        mistake(self)
    }

    fn settings(&self) -> SettingList {
        let Exponential { gamma } = self;
        SettingList::of("Exponential").with("gamma", gamma)
    }
}
