use trainer::prelude::*;

#[hook]
fn scaled(_: &mut Cx<Backward>, _: &mut Next<Backward>) {}

fn main() {}
