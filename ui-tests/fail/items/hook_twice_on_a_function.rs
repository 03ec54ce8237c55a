use trainer::prelude::*;

#[hook]
#[hook]
fn log(_: &mut Cx<AfterStep>) {}

fn main() {}
