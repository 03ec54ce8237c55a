//! Hooks that any program has once it names this crate: `use digits_hooks as _;`.

use std::f64::consts::PI;

use trainer::prelude::*;

/// The learning rate at its highest.
const PEAK: f64 = 5e-3;

/// The learning rate rises for so many optimizer steps.
const WARM_UP: f64 = 50.0;

/// Sets the learning rate: a linear warm-up, then a cosine down to zero.
#[hook(ord = -10)]
pub fn before_opt_step(cx: &mut Cx<BeforeOptStep>) -> Result<()> {
    let step = cx.step().optimizer_step as f64 + 1.0;
    let steps = cx.planned_steps().ok_or_else(|| Error::msg("the loader has no length"))?;
    let fall = 0.5 * (1.0 + (PI * step / steps as f64).cos());
    for group in cx.optimizer()?.groups_mut() {
        group.lr = PEAK * (step / WARM_UP).min(1.0) * fall;
    }
    Ok(())
}

/// Logs the norm of all weights after each epoch of training.
#[hook(after_train_epoch)]
pub fn weight_norm(cx: &mut Cx<AfterTrainEpoch>) {
    let squares = cx.vars().parameters().map(|var| var.tensor.square().sum(Kind::Float).double_value(&[]));
    let norm = squares.sum::<f64>().sqrt();
    cx.log("weight_norm", norm);
}
