use trainer::prelude::*;

#[hook(ord = 10; only = train)]
fn print(_: &Cx<AfterStep>) {}

fn main() {}
