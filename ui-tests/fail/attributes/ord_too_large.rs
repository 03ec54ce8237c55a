use trainer::prelude::*;

#[hook(ord = 2147483648)]
fn after_step(_: &mut Cx<AfterStep>) {}

fn main() {}
