use trainer::prelude::*;

#[hook]
fn on_train_batch_end(_: &mut Cx<OnTrainBatchEnd>) {}

fn main() {}
