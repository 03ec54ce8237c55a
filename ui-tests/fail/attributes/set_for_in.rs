use trainer::prelude::*;

#[hook(in_set = trainer::stages::Loggers)]
fn write(_: &Cx<AfterStep>) {}

fn main() {}
