use trainer::prelude::*;

#[hook]
fn one(_: &mut Cx<AfterBakward>) {}

#[hook]
fn other(_: &Cx<Main<BeforFit>>) {}

fn main() {}
