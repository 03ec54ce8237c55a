use trainer::prelude::*;

#[hook(every = Every::Steps(10))]
fn print_loss(cx: &Cx<AfterLoss>) {
    println!("{}", cx.loss().double_value(&[]));
}

fn main() {}
