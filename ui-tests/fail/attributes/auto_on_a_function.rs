use trainer::prelude::*;

#[hook(auto)]
fn log(_: &mut Cx<AfterStep>) {}

fn main() {}
