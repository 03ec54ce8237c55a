use trainer::prelude::*;

#[hook]
fn mine(_: &Cx<Train>) {}

fn main() {}
