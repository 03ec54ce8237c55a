use trainer::prelude::*;

#[hook(every = -1)]
fn after_step(_: &mut Cx<AfterStep>) {}

fn main() {}
