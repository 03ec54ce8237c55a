use trainer::prelude::*;

#[hook(at = after_step)]
fn report(_: &mut Cx<AfterStep>) {}

fn main() {}
