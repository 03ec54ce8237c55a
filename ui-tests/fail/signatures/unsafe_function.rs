use trainer::prelude::*;

#[hook]
unsafe fn after_step(_: &mut Cx<AfterStep>) {}

fn main() {}
