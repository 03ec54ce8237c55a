use trainer::prelude::*;

#[hook(ord = "10")]
fn after_step(_: &mut Cx<AfterStep>) {}

fn main() {}
