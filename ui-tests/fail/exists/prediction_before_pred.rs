use trainer::prelude::*;

#[hook]
fn after_transfer(cx: &mut Cx<AfterTransfer>) -> Result<()> {
    cx.pred::<Tensor>().map(drop)
}

fn main() {}
