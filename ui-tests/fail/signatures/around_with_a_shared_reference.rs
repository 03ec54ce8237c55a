use trainer::prelude::*;

#[hook]
fn scaled(cx: &Cx<Backward>, next: Next<Backward>) -> Result<Done> {
    next.run(cx)
}

fn main() {}
