use trainer::prelude::*;

#[hook(rank = 0)]
fn print_loss(cx: &Cx<AfterLoss>) {
    println!("{}", cx.loss().double_value(&[]));
}

fn main() {}
