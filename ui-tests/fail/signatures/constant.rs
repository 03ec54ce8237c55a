use trainer::prelude::*;

#[hook]
const fn after_step(_: &mut Cx<AfterStep>) {}

fn main() {}
