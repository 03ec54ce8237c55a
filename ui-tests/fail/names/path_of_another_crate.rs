use trainer::prelude::*;

#[hook(trainer::at::after_stepp)]
fn log(_: &mut Cx<AfterStep>) {}

fn main() {}
