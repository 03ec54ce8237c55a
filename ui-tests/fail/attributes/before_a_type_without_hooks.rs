use trainer::prelude::*;

struct Plain;

#[hook(after_step, before = Plain)]
fn early(_: &mut Cx<AfterStep>) {}

fn main() {}
