//! Hooks that any program has once it names this crate: `use digits_hooks as _;`.

use trainer::prelude::*;

/// Logs the norm of all weights after each epoch of training.
#[hook(after_train_epoch)]
pub fn weight_norm(cx: &mut Cx<AfterTrainEpoch>) {
    let squares =
        cx.vars().parameters().map(|var| var.tensor.square().sum(Kind::Float).double_value(&[])).sum::<f64>();
    cx.log("weight_norm", squares.sqrt());
}
