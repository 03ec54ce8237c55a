use trainer::prelude::*;

#[hook]
fn after_loss(cx: &mut Cx<AfterLoss>) -> Result<()> {
    cx.fire::<AfterStep>()
}

fn main() {}
