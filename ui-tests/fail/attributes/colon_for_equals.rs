use trainer::prelude::*;

#[hook(ord: 10)]
fn after_step(_: &Cx<AfterStep>) {}

fn main() {}
