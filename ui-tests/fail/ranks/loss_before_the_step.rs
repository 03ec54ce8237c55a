use trainer::prelude::*;

#[hook]
fn before_step(cx: &mut Cx<Main<BeforeStep>>) {
    cx.loss();
}

fn main() {}
