use trainer::prelude::*;

#[hook(crate = std::vec)]
fn print(_: &Cx<AfterStep>) {}

fn main() {}
