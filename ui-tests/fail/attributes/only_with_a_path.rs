use trainer::prelude::*;

#[hook(only = Phase::Train)]
fn log(cx: &mut Cx<AfterStep>) {
    cx.log("one", 1.0);
}

fn main() {}
