use trainer::prelude::*;

#[hook(after_step, around = backward)]
fn scaled(cx: &mut Cx<Backward>, next: Next<Backward>) -> Result<Done> {
    next.run(cx)
}

fn main() {}
