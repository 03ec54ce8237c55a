use trainer::prelude::*;

#[hook(around = backward)]
fn clipped(cx: &mut Cx<Backward>, next: Next<Backward>) -> Result<Done> {
    let done = next.run(cx)?;
    let _ = cx.grads().count();
    Ok(done)
}

fn main() {}
