use trainer::prelude::*;

#[hook(every = 0)]
fn after_step(_: &mut Cx<AfterStep>) {}

fn main() {}
