use trainer::prelude::*;

#[hook(in = "Loggers")]
fn write(_: &Cx<AfterStep>) {}

fn main() {}
