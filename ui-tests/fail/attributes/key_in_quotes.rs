use trainer::prelude::*;

#[hook("only" = train)]
fn count(cx: &Cx<AfterStep>) {
    println!("{}", cx.counters().batches_seen);
}

fn main() {}
