use trainer::prelude::*;

#[hook(after_step(), ord = 3)]
fn report(_: &mut Cx<AfterStep>) {}

fn main() {}
