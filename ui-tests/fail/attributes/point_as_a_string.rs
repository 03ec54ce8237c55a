use trainer::prelude::*;

#[hook("after_step")]
fn report(_: &mut Cx<AfterStep>) {}

fn main() {}
