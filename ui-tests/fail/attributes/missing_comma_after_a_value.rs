use trainer::prelude::*;

#[hook(ord = 1 only = train)]
fn report(_: &mut Cx<AfterStep>) {}

fn main() {}
