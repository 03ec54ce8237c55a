use trainer::prelude::*;

#[hook(crate = reexported::trainer)]
fn after_step(_: &mut Cx<AfterStep>) {}

fn main() {}
