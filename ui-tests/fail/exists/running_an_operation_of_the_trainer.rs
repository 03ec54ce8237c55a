use trainer::prelude::*;

#[hook]
fn after_loss(cx: &mut Cx<AfterLoss>) -> Result<()> {
    cx.run::<Backward>(|_| Ok(())).map(drop)
}

fn main() {}
