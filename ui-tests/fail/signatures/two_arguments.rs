use trainer::prelude::*;

#[hook]
fn after_step(_: &mut Cx<AfterStep>, _: usize) {}

fn main() {}
