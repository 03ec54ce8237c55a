use trainer::prelude::*;

#[hook(around = backward)]
fn scaled(_: &mut Cx<Backward>, _: Next<Loss>) {}

fn main() {}
