use trainer::prelude::*;

#[hook]
fn mine(cx: Main<AfterStep>) {
    println!("{}", cx.counters().epoch);
}

fn main() {}
