use trainer::prelude::*;

#[hook(main_only)]
fn after_step(cx: &mut Cx<Main<AfterStep>>) {
    cx.world();
}

fn main() {}
