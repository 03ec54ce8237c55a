//! Multiplied at each so many steps.

use super::{Length, Schedule, is_factor};
use crate::error::Result;

/// Multiplied by gamma at each N-th step: `gamma^⌊n / N⌋`.
///
/// `torch.optim.lr_scheduler.StepLR`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepDecay {
    every: Length,
    gamma: f64,
}

impl StepDecay {
    /// Each time that so many steps have passed, multiplied by this.
    #[must_use]
    pub fn new(every: impl Into<Length>, gamma: f64) -> Self {
        StepDecay { every: every.into(), gamma }
    }
}

impl Schedule for StepDecay {
    fn factor(&self, step: u64, run: Option<u64>) -> Result<f64> {
        let gamma = is_factor("the gamma of `StepDecay`", self.gamma)?;
        let every = self.every.at_least_one_of(run, "StepDecay::new")?;
        Ok(gamma.powf((step / every) as f64))
    }
}
