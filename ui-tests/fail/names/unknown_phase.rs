use trainer::prelude::*;

#[hook(only = training)]
fn log(_: &mut Cx<AfterStep>) {}

fn main() {}
