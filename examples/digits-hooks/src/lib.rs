//! Hooks that any program has once it names this crate: `use digits_hooks as _;`.

use trainer::prelude::*;

/// The learning rate rises over this many optimizer steps.
const WARM_UP: u64 = 50;

/// Warms the learning rate up linearly to 3e-3.
#[hook(ord = -10)]
pub fn before_opt_step(cx: &mut Cx<BeforeOptStep>) -> Result<()> {
    let step = cx.step().optimizer_step + 1;
    let lr = 3e-3 * step.min(WARM_UP) as f64 / WARM_UP as f64;
    for group in cx.optimizer()?.groups_mut() {
        group.lr = lr;
    }
    Ok(())
}

/// Logs the norm of all weights after each epoch of training.
#[hook(after_train_epoch)]
pub fn weight_norm(cx: &mut Cx<AfterTrainEpoch>) {
    let squares: f64 =
        cx.vars().parameters().map(|var| var.tensor.square().sum(Kind::Float).double_value(&[])).sum();
    cx.log("weight_norm", squares.sqrt());
}
