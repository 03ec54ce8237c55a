use trainer::prelude::*;

#[hook]
fn note(_: &trainer::Cx<trainer::AfterStepp>) {}

fn main() {}
