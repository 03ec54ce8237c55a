use trainer::prelude::*;

#[hook]
fn scaled(cx: &mut Cx<Backward>) {
    cx.scale_loss(2.0);
}

fn main() {}
