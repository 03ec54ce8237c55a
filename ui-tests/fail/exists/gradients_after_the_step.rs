use trainer::prelude::*;

#[hook]
fn after_step(cx: &mut Cx<AfterStep>) {
    let _ = cx.grads().count();
}

fn main() {}
