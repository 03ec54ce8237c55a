use trainer::prelude::*;

#[hook]
fn after_step(cx: &mut Cx<Main<AfterStep>>) {
    cx.world();
}

fn main() {}
