use trainer::prelude::*;

#[hook]
fn after_loss(cx: &mut Cx<AfterLoss>) {
    cx.skip_batch();
}

fn main() {}
