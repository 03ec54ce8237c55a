//! Sharpness-aware minimization.

use super::super::{is_positive, refused, stages};
use crate::checkpoint::{SettingList, Settings};
use crate::norms;
use crate::prelude::own::*;

/// Takes each optimizer step with the gradients at the nearby weights where, to first order, the
/// loss is largest (Foret et al., *Sharpness-Aware Minimization for Efficiently Improving
/// Generalization*, 2021): at `w + rho * g / ‖g‖`, where `g` is the gradient at `w`. Each step runs
/// the forward and backward pass twice.
///
/// Use this when a model fits the training data but not the validation data, and you can accept
/// that steps take twice as long.
///
/// The logged loss is the loss at `w`. The second forward pass draws new dropout masks, and batch
/// norm updates its running statistics in both passes. With [`Amp`](crate::hooks::Amp), both passes
/// use mixed precision. Clipping and [`NanGuard`](crate::hooks::NanGuard)'s check of the gradients
/// apply to the gradients of the second pass. If there are no gradients, for example because a hook
/// dropped them at `before_opt_step`, there is no second pass.
///
/// SAM needs the gradients of a single batch and a single loss: accumulation, several optimizers,
/// several processes, and a [`train_step`](Task::train_step) with several losses are errors.
///
/// ```
/// # use trainer::hooks::Sam;
/// # use trainer::prelude::*;
/// # fn train(task: impl Task<Batch = Tensor>) -> Result<()> {
/// let trainer = Trainer::builder(task)
///     .optimizer(Sgd::new(0.1).momentum(0.9))
///     .hook(Sam::new(0.05))
///     .build()?;
/// # Ok(())
/// # }
/// ```
#[doc(alias = "SharpnessAwareMinimization")]
#[derive(Debug)]
pub struct Sam {
    rho: f64,
    adaptive: bool,
}

impl Sam {
    /// Perturbs the weights by a distance of `rho`, above 0.
    #[must_use]
    pub fn new(rho: f64) -> Self {
        Sam { rho, adaptive: false }
    }

    /// Whether the neighborhood scales with the magnitude of each weight (Kwon et al., *ASAM:
    /// Adaptive Sharpness-Aware Minimization*, 2021). The step then uses the gradients at
    /// `w + rho * w² g / ‖w g‖`. Defaults to `false`.
    #[must_use]
    pub fn adaptive(mut self, adaptive: bool) -> Self {
        self.adaptive = adaptive;
        self
    }

    /// Moves the weights to the nearby point where, to first order, the loss is largest.
    fn perturb(&self, cx: &mut Cx<OptStep>) -> Result<Perturbed> {
        let _no_grad = tch::no_grad_guard();
        let vars = cx.vars();
        let mut perturbed = Perturbed(Vec::new());
        let mut measured = Vec::new();
        let mut steps = Vec::new();
        for (name, grad) in cx.grads() {
            let weight = vars.get(&name)?.shallow_clone();
            measured.push(if self.adaptive { weight.abs() * &grad } else { grad.shallow_clone() });
            perturbed.0.push((weight.copy(), weight));
            steps.push(grad);
        }
        let norm = norms([&norms(&measured)?])?.get(0).to_device(cx.device());
        let scale = norm.f_add_scalar(1e-12)?.reciprocal() * self.rho;
        for ((before, weight), grad) in perturbed.0.iter_mut().zip(steps) {
            let step = if self.adaptive { before.square() * grad } else { grad.shallow_clone() };
            let _ = weight.f_add_(&(step * &scale))?;
        }
        Ok(perturbed)
    }
}

/// Pairs of an original value and the weight that was perturbed. Dropping this restores the
/// weights, even after a panic.
struct Perturbed(Vec<(Tensor, Tensor)>);

impl Drop for Perturbed {
    fn drop(&mut self) {
        let _no_grad = tch::no_grad_guard();
        for (before, weight) in &mut self.0 {
            weight.copy_(before);
        }
    }
}

#[hook(in = stages::StepControl, ord = -2, only = train, single, settings, trial)]
impl Sam {
    /// Returns an error if a setting is invalid, if the trainer has several optimizers, or if
    /// several processes train together.
    fn setup(&mut self, cx: &Cx<Setup>) -> Result<()> {
        if cx.vars().share().of > 1 {
            return Err(Error::msg("`Sam` does not support several processes: remove the hook"));
        }
        if cx.parts().count() > 1 {
            return Err(Error::msg(
                "`Sam` supports only one optimizer, but the trainer has several: remove the hook",
            ));
        }
        Ok(())
    }

    /// Returns an error before a batch that does not end an accumulation window.
    fn before_pred(&mut self, cx: &Cx<BeforePred>) -> Result<()> {
        // The last window of an epoch may have a single batch.
        if !cx.is_boundary() {
            return Err(Error::msg(
                "`Sam` computes a batch twice, so the gradients of earlier batches of an accumulation window would be lost: \
                 remove `.accumulate(…)`, or the hook",
            ));
        }
        Ok(())
    }

    /// Runs the optimizer step with the gradients at the perturbed weights.
    fn step(&mut self, cx: &mut Cx<OptStep>, next: Next<OptStep>) -> Result<Done> {
        if cx.grads().next().is_none() {
            return next.run(cx);
        }
        let perturbed = self.perturb(cx)?;
        drop(cx.recompute_grads()?);
        drop(perturbed);
        next.run(cx)
    }
}

#[diagnostic::do_not_recommend]
impl Settings for Sam {
    fn settings(&self) -> SettingList {
        let Sam { rho, adaptive } = self;
        SettingList::new().with("rho", rho).with("adaptive", adaptive)
    }

    fn mistakes(&self) -> Vec<String> {
        let rho = self.rho;
        refused([(!is_positive(rho), format!("`Sam::new({rho:?})`: expected a finite number above 0"))])
    }
}
