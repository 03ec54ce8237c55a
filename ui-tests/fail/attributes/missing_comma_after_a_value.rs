use trainer::prelude::*;

#[hook(after_step, ord = 1 only = train)]
fn report(_: &mut Cx<AfterStep>) {}

fn main() {}
