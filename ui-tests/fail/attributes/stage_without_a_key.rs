use trainer::prelude::*;

#[hook(Loggers)]
fn write(_: &Cx<AfterStep>) {}

fn main() {}
