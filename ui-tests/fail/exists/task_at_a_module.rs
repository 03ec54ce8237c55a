use trainer::prelude::*;

#[hook]
fn after_module(cx: &mut Cx<AfterModule>) -> Result<()> {
    cx.task::<u8>().map(drop)
}

fn main() {}
