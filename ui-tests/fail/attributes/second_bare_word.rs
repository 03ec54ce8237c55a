use trainer::prelude::*;

#[hook(after_step, train)]
fn log(_: &mut Cx<AfterStep>) {}

fn main() {}
