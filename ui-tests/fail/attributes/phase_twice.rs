use trainer::prelude::*;

#[hook(only(valid, valid))]
fn print(_: &Cx<AfterStep>) {}

fn main() {}
