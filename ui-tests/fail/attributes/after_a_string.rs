use trainer::prelude::*;

#[hook(after = "progress", before)]
fn late(_: &mut Cx<AfterStep>) {}

fn main() {}
