use trainer::prelude::*;

#[hook(main_only)]
fn before_step(cx: &mut Cx<Main<BeforeStep>>) {
    cx.loss();
}

fn main() {}
