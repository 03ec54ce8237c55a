//! Hooks that are active in every program that names this crate: `use digits_hooks as _;`.

use trainer::prelude::*;

/// Logs the L2 norm of all parameters after each training epoch, as `train/weight_norm`.
#[hook]
pub fn weight_norm(cx: &Cx<AfterTrainEpoch>) {
    let squares =
        cx.vars().parameters().map(|var| var.tensor.square().sum(Kind::Float).double_value(&[])).sum::<f64>();
    cx.log("weight_norm", squares.sqrt());
}
