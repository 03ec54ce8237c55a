use trainer::prelude::*;

#[hook]
fn after_bakward(_: &mut Cx<AfterBackward>) {}

fn main() {}
