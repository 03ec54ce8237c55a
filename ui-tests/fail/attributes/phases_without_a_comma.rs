use trainer::prelude::*;

#[hook(only(train valid))]
fn print_loss(cx: &Cx<AfterLoss>) {
    println!("{}", cx.loss().double_value(&[]));
}

fn main() {}
