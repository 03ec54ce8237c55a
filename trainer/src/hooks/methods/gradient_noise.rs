//! Gradient noise.

use super::super::{is_at_least_0, refused, stages};
use crate::checkpoint::{SettingList, Settings};
use crate::prelude::own::*;

/// Adds Gaussian noise to the gradients of each optimizer step (Neelakantan et al., *Adding
/// Gradient Noise Improves Learning for Very Deep Networks*, 2015). The variance after `t` steps is
/// `eta / (1 + t)^gamma`.
///
/// Use this when a very deep network does not train from some initializations.
///
/// The random numbers come from libtorch's generator, whose state is part of checkpoints. Clipping
/// runs inside this hook, so it applies to the noisy gradients. With several optimizers, the steps
/// of each are counted separately.
///
/// ```
/// use trainer::hooks::GradientNoise;
///
/// let noise = GradientNoise::new(0.01);
/// ```
#[derive(Debug)]
pub struct GradientNoise {
    eta: f64,
    gamma: f64,
}

impl GradientNoise {
    /// Adds noise whose variance at the first step is `eta`, at least 0.
    #[must_use]
    pub fn new(eta: f64) -> Self {
        GradientNoise { eta, gamma: 0.55 }
    }

    /// Sets the exponent with which the variance decays, at least 0. Defaults to 0.55.
    #[must_use]
    pub fn gamma(mut self, gamma: f64) -> Self {
        self.gamma = gamma;
        self
    }
}

#[hook(in = stages::Regularization, only = train, settings, trial)]
impl GradientNoise {
    /// Adds the noise.
    fn add_noise(&mut self, cx: &mut Cx<OptStep>, next: Next<OptStep>) -> Result<Done> {
        let part = cx.part().to_owned();
        let deviation = (self.eta / (1.0 + cx.steps_of(&part)? as f64).powf(self.gamma)).sqrt();
        let grads: Vec<(crate::VarName, Tensor)> = cx.grads().filter(|(name, _)| name.is_in(&part)).collect();
        let mut noise = Vec::with_capacity(grads.len());
        for (_, grad) in &grads {
            noise.push(grad.f_randn_like()?);
        }
        // The same on all ranks, so that their weights stay equal. Only one rank has each gradient
        // that is divided.
        if !cx.grads_are_divided() {
            cx.world().broadcast(grads.iter().map(|(name, _)| name).zip(&noise), 0)?;
        }
        for ((_, mut grad), noise) in grads.into_iter().zip(noise) {
            let _ = grad.f_add_(&(noise * deviation))?;
        }
        next.run(cx)
    }
}

#[diagnostic::do_not_recommend]
impl Settings for GradientNoise {
    fn settings(&self) -> SettingList {
        let GradientNoise { eta, gamma } = self;
        SettingList::new().with("eta", eta).with("gamma", gamma)
    }

    fn mistakes(&self) -> Vec<String> {
        refused([("GradientNoise::new", self.eta), (".gamma", self.gamma)].map(|(setting, value)| {
            (
                !is_at_least_0(value),
                format!("`{setting}({value:?})`: expected a finite number of at least 0.0"),
            )
        }))
    }
}
