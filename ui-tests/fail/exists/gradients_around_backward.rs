use trainer::prelude::*;

#[hook]
fn clipped(cx: &mut Cx<Backward>, next: Next<Backward>) -> Result<Done> {
    let done = next.run(cx)?;
    let _ = cx.grads().count();
    Ok(done)
}

fn main() {}
