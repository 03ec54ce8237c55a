use trainer::prelude::*;

#[hook(on_epoch_end)]
fn log(_: &mut Cx<AfterEpoch>) {}

fn main() {}
