use trainer::prelude::*;

#[hook(ord = 3, ord = 4)]
fn after_step(_: &mut Cx<AfterStep>) {}

fn main() {}
