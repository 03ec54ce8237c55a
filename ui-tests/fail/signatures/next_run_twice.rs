use trainer::prelude::*;

#[hook]
fn twice(cx: &mut Cx<Backward>, next: Next<Backward>) -> Result<Done> {
    next.run(cx)?;
    next.run(cx)
}

fn main() {}
