use trainer::prelude::*;

#[hook]
fn after_step(_: &mut Cx<AfterLoss>) {}

fn main() {}
