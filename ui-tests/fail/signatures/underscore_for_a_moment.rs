use trainer::prelude::*;

#[hook]
fn watch(cx: &Cx<_>) {
    println!("{}", cx.counters().batches_seen);
}

fn main() {}
