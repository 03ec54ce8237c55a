use trainer::prelude::*;

fn loss_of(cx: &Cx<AfterLoss>) -> Tensor {
    cx.loss()
}

#[hook]
fn after_step(cx: &mut Cx<AfterStep>) {
    loss_of(cx);
}

fn main() {}
