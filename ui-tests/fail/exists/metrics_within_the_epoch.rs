use trainer::prelude::*;

#[hook]
fn after_step(cx: &mut Cx<AfterStep>) {
    cx.metrics();
}

fn main() {}
