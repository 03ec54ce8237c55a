use trainer::prelude::*;

const FIRST: i64 = -10;

#[hook(ord = FIRST)]
fn after_step(_: &mut Cx<AfterStep>) {}

fn main() {}
