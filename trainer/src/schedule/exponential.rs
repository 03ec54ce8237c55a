//! Multiplied at each step.

use super::{Schedule, is_factor};
use crate::error::Result;

/// Multiplied by gamma at each step: `gammaⁿ`.
///
/// `torch.optim.lr_scheduler.ExponentialLR`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Exponential {
    gamma: f64,
}

impl Exponential {
    /// With this factor from each step to the next.
    #[must_use]
    pub fn new(gamma: f64) -> Self {
        Exponential { gamma }
    }
}

impl Schedule for Exponential {
    fn factor(&self, step: u64, _: Option<u64>) -> Result<f64> {
        Ok(is_factor("the gamma of `Exponential`", self.gamma)?.powf(step as f64))
    }
}
