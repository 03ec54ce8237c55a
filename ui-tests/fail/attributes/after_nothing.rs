use trainer::prelude::*;

#[hook(after_step, after = missing)]
fn late(_: &mut Cx<AfterStep>) {}

fn main() {}
