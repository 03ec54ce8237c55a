use trainer::prelude::*;

#[hook]
fn after_epoch(cx: &mut Cx<AfterEpoch>) {
    cx.loss();
}

fn main() {}
