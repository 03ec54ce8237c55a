use trainer::prelude::*;

#[hook]
fn report(_: &mut Cx<AfterBakward>) {}

fn main() {}
