use trainer::prelude::*;

#[hook(after_stp, ord = 3)]
fn log(_: &mut Cx<AfterStep>) {}

fn main() {}
