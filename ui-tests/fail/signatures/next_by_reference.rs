use trainer::prelude::*;

#[hook(around = backward)]
fn scaled(_: &mut Cx<Backward>, _: &mut Next<Backward>) {}

fn main() {}
