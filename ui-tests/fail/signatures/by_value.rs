use trainer::prelude::*;

#[hook]
fn after_step(_: Cx<AfterStep>) {}

fn main() {}
