use trainer::prelude::*;

use trainer::moment::AtPoint;

#[hook]
fn watch(cx: &Cx<impl AtPoint>) {
    println!("{}", cx.counters().batches_seen);
}

fn main() {}
