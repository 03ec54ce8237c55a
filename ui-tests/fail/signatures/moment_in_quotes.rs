use trainer::prelude::*;

#[hook]
fn print_step(cx: &Cx<"after_step">) {
    println!("{}", cx.counters().batches_seen);
}

fn main() {}
