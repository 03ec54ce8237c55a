use trainer::prelude::*;

#[hook(train)]
fn log(_: &mut Cx<AfterStep>) {}

fn main() {}
