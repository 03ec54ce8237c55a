use trainer::prelude::*;

#[hook]
fn print_step(cx: &Main<Cx<AfterStep>>) {
    println!("rank 0");
}

fn main() {}
