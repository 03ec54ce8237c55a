use trainer::prelude::*;

#[hook(every = epoch)]
fn after_step(_: &Cx<AfterStep>) {}

fn main() {}
