use trainer::prelude::*;

#[hook]
fn scaled(next: Next<Backward>, cx: &mut Cx<Backward>) -> Result<Done> {
    next.run(cx)
}

fn main() {}
