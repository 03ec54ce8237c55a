use trainer::prelude::*;

#[hook(only = "train")]
fn print(_: &Cx<AfterStep>) {}

fn main() {}
