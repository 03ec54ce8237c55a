use trainer::prelude::*;

#[hook(after_step, main_only = true)]
fn log(_: &mut Cx<AfterStep>) {}

fn main() {}
