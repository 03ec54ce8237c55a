use trainer::prelude::*;

#[hook(after_step, around = backward)]
fn scaled(cx: &mut Cx<Backward>, next: Next<Backward>) -> Result<()> {
    next.run(cx)
}

fn main() {}
