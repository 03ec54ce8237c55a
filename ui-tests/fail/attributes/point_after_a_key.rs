use trainer::prelude::*;

#[hook(ord = 3, after_epoch)]
fn report(_: &mut Cx<AfterEpoch>) {}

fn main() {}
