use trainer::prelude::*;

#[hook]
fn before_step(cx: &mut Cx<BeforeStep>) {
    cx.loss();
}

fn main() {}
