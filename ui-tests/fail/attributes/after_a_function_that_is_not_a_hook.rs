use trainer::prelude::*;

fn helper(_: f64) {}

#[hook(after = helper)]
fn late(_: &mut Cx<AfterStep>) {}

fn main() {}
