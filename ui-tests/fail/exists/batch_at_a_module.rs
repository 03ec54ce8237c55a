use trainer::prelude::*;

#[hook]
fn after_module(cx: &mut Cx<AfterModule>) -> Result<()> {
    cx.batch::<Tensor>().map(drop)
}

fn main() {}
