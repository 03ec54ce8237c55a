use trainer::prelude::*;

#[hook(after_step, after = "progress", before)]
fn late(_: &mut Cx<AfterStep>) {}

fn main() {}
