use trainer::prelude::*;

#[hook(at = after_epoch)]
fn report(_: &mut Cx<AfterEpoch>) {}

fn main() {}
