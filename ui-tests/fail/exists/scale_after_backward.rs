use trainer::prelude::*;

#[hook]
fn after_backward(cx: &mut Cx<AfterBackward>) {
    cx.scale_loss(0.5);
}

fn main() {}
