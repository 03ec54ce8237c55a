use trainer::prelude::*;

#[hook(after_step, auto)]
fn log(_: &mut Cx<AfterStep>) {}

fn main() {}
