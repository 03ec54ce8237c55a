use trainer::prelude::*;

#[hook(around = backward)]
fn twice(cx: &mut Cx<Backward>, next: Next<Backward>) -> Result<Done> {
    next.run(cx)?;
    next.run(cx)
}

fn main() {}
