use trainer::prelude::*;

#[hook(prio = 3)]
fn after_step(_: &mut Cx<AfterStep>) {}

fn main() {}
