use trainer::prelude::*;

#[hook]
fn after_step(cx: &mut Cx<AfterStep>) {
    cx.loss();
}

fn main() {}
