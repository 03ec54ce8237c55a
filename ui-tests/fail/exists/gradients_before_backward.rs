use trainer::prelude::*;

#[hook]
fn after_loss(cx: &mut Cx<AfterLoss>) -> Result<()> {
    cx.grad("fc1.weight").map(drop)
}

fn main() {}
