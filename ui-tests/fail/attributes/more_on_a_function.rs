use trainer::prelude::*;

#[hook(more)]
fn after_step(_: &Cx<AfterStep>) {}

fn main() {}
