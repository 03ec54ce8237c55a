use trainer::prelude::*;

#[hook]
fn mine(_: &Cx<AfterValidEpoch>) {}

fn main() {}
