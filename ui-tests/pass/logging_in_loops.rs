//! Loops that log, as users first write them.

use trainer::prelude::*;

#[hook]
fn after_backward(cx: &mut Cx<AfterBackward>) -> Result<()> {
    for (name, grad) in cx.grads() {
        if name != "head.bias" && !name.ends_with("weight") {
            cx.log(format!("share/{name}"), grad.mean(Kind::Float));
        }
        cx.log(name, grad.norm());
    }
    cx.log("loss_again", cx.loss());
    cx.log("rate", cx.lrs()[0]);
    cx.log_as("largest", cx.grad("head.bias")?.max(), Reduce::Max);
    Ok(())
}

#[hook]
fn after_train_epoch(cx: &mut Cx<AfterTrainEpoch>) {
    for var in cx.vars().parameters() {
        cx.log(&var.name, var.tensor.norm());
    }
}

fn main() {}
