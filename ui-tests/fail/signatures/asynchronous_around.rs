use trainer::prelude::*;

#[hook]
async fn own(cx: &mut Cx<Backward>, next: Next<Backward>) -> Result<Done> {
    next.run(cx)
}

fn main() {}
