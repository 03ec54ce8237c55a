use trainer::prelude::*;

#[hook(main_only = true)]
fn log(_: &mut Cx<AfterStep>) {}

fn main() {}
