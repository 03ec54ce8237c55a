use trainer::prelude::*;

#[hook(backward)]
fn scaled(_: &mut Cx<Backward>) {}

fn main() {}
