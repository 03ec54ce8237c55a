use trainer::prelude::*;

const N: u32 = 100;

#[hook(every = N)]
fn after_step(_: &mut Cx<AfterStep>) {}

fn main() {}
