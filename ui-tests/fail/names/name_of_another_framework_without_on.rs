use trainer::prelude::*;

#[hook]
fn mine(_: &Cx<TrainBatchEnd>) {}

fn main() {}
