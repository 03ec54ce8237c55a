use trainer::prelude::*;

#[hook(after_step, only = Phase::Train)]
fn log(cx: &mut Cx<AfterStep>) {
    cx.log("one", 1.0);
}

fn main() {}
