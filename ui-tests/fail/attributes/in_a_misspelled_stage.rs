use trainer::prelude::*;
use trainer::stages;

#[hook(in = stages::Logger)]
fn write(_: &Cx<AfterStep>) {}

fn main() {}
