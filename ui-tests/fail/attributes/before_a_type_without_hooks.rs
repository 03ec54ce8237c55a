use trainer::prelude::*;

struct Plain;

#[hook(before = Plain)]
fn early(_: &mut Cx<AfterStep>) {}

fn main() {}
