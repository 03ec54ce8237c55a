//! Half a cosine wave.

use super::{Length, Schedule, between, half_wave, is_factor};
use crate::error::Result;

/// Half a cosine wave from 1 down over N steps: `end + (1 - end) · (1 + cos(π · min(n, N) / N)) / 2`.
///
/// Loshchilov and Hutter, *SGDR: Stochastic Gradient Descent with Warm Restarts*, 2017, without the restarts.
/// `torch.optim.lr_scheduler.CosineAnnealingLR` for up to its `T_max` steps; from there PyTorch's rises again, and this stays.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cosine {
    end: f64,
    over: Length,
}

impl Cosine {
    /// Down to this factor.
    #[must_use]
    pub fn to(end: f64) -> Self {
        Cosine { end, over: Length::WHOLE }
    }

    /// In so long; the whole run unless set.
    #[must_use]
    pub fn over(mut self, length: impl Into<Length>) -> Self {
        self.over = length.into();
        self
    }
}

impl Schedule for Cosine {
    fn factor(&self, step: u64, run: Option<u64>) -> Result<f64> {
        let end = is_factor("the end of `Cosine`", self.end)?;
        let steps = self.over.at_least_one_of(run, "Cosine::over")?;
        Ok(between(end, 1.0, half_wave(step.min(steps) as f64 / steps as f64)))
    }
}
