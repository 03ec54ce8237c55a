use trainer::prelude::*;

#[hook(only = predict)]
fn after_epoch(_: &mut Cx<AfterEpoch>) {}

fn main() {}
