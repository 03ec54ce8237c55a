use trainer::prelude::*;

#[hook(order = 3)]
fn after_step(_: &mut Cx<AfterStep>) {}

fn main() {}
