use trainer::prelude::*;

#[hook(around = after_backward)]
fn scaled(cx: &mut Cx<AfterBackward>, next: Next<AfterBackward>) -> Result<Done> {
    next.run(cx)
}

fn main() {}
