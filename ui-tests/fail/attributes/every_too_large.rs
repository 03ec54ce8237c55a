use trainer::prelude::*;

#[hook(every = 20_000_000_000_000_000_000)]
fn after_step(_: &mut Cx<AfterStep>) {}

fn main() {}
