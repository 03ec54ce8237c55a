use trainer::prelude::*;

#[hook]
fn scaled(cx: &mut Cx<Backward>, next: Next<Backward>) -> Result<()> {
    next.run(cx)?;
    Ok(())
}

fn main() {}
