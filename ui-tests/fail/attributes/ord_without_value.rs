use trainer::prelude::*;

#[hook(ord =)]
fn after_step(_: &mut Cx<AfterStep>) {}

fn main() {}
