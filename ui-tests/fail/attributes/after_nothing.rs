use trainer::prelude::*;

#[hook(after = missing)]
fn late(_: &mut Cx<AfterStep>) {}

fn main() {}
