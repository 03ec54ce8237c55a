use trainer::prelude::*;

#[hook]
fn mine(step: u64, cx: &Cx<AfterStep>) {
    println!("{step} {}", cx.counters().epoch);
}

fn main() {}
