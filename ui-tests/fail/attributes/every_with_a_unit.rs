use trainer::prelude::*;

#[hook(every = 10 epochs)]
fn print_loss(cx: &Cx<AfterLoss>) {
    println!("{}", cx.loss().double_value(&[]));
}

fn main() {}
