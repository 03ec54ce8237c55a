use trainer::prelude::*;

#[hook(ord == 10)]
fn print(_: &Cx<AfterStep>) {}

fn main() {}
