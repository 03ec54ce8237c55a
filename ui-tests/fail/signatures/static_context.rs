use trainer::prelude::*;

#[hook]
fn after_step(_: &'static mut Cx<AfterStep>) {}

fn main() {}
