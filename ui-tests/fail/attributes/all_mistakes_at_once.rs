use trainer::prelude::*;

#[hook(order = 3, every = 0, ord = "10")]
fn after_step(_: &mut Cx<AfterStep>) {}

fn main() {}
