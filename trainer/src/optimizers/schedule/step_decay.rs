//! Decay every N steps.

use super::{Schedule, check_factor, mistake};
use crate::error::Result;
use crate::values::amount::Amount;
use crate::values::facts::SettingList;

/// A factor that is multiplied by gamma every N steps: `gamma^⌊n / N⌋`.
///
/// Use this when the learning rate should fall at regular intervals.
///
/// Corresponds to `torch.optim.lr_scheduler.StepLR`.
///
/// ```
/// use trainer::prelude::*;
/// use trainer::schedule::StepDecay;
///
/// let schedule = StepDecay::new(2, 0.5);
/// let factors: Result<Vec<f64>> = (0..5).map(|step| schedule.factor(step, None)).collect();
/// assert_eq!(factors?, [1.0, 1.0, 0.5, 0.5, 0.25]);
/// # Ok::<(), trainer::Error>(())
/// ```
#[doc(alias = "StepLR")]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepDecay {
    every: Amount,
    gamma: f64,
}

impl StepDecay {
    /// Creates the schedule, whose factor is multiplied by `gamma` after each period of length
    /// `every`.
    #[must_use]
    pub fn new(every: impl Into<Amount>, gamma: f64) -> Self {
        StepDecay { every: every.into(), gamma }
    }
}

impl Schedule for StepDecay {
    fn factor(&self, step: u64, run: Option<u64>) -> Result<f64> {
        let gamma = check_factor("the gamma of `StepDecay`", self.gamma)?;
        Ok(gamma.powf((step / self.every.steps_at_least_1(run, "StepDecay::new({}, …)")?) as f64))
    }

    fn mistakes(&self) -> Vec<String> {
        mistake(self)
    }

    fn settings(&self) -> SettingList {
        let StepDecay { every, gamma } = self;
        SettingList::of("StepDecay").with("every", every).with("gamma", gamma)
    }
}
