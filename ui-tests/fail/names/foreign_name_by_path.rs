use trainer::prelude::*;

#[hook]
fn mine(cx: &Cx<trainer::AfterBatch>) {
    println!("{}", cx.counters().epoch);
}

fn main() {}
