use trainer::prelude::*;

#[hook(after_step, only = training)]
fn log(_: &mut Cx<AfterStep>) {}

fn main() {}
