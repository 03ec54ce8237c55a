use trainer::prelude::*;

#[hook(around = after_backward)]
fn scaled(cx: &mut Cx<AfterBackward>, next: Next<AfterBackward>) -> Result<()> {
    next.run(cx)
}

fn main() {}
