use trainer::prelude::*;

#[hook]
fn note(_: &mut Cx<f32>) {}

fn main() {}
