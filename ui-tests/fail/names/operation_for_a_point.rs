use trainer::prelude::*;

#[hook]
fn note(_: &mut Cx<Backward>) {}

fn main() {}
