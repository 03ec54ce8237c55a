use trainer::prelude::*;

#[hook(ord = 1.5)]
fn after_step(_: &mut Cx<AfterStep>) {}

fn main() {}
