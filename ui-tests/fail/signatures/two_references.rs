use trainer::prelude::*;

#[hook]
fn watch(cx: &&Cx<AfterLoss>) {
    println!("{}", cx.counters().batches_seen);
}

fn main() {}
