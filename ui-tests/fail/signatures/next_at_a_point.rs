use trainer::prelude::*;

#[hook]
fn after_backward(cx: &mut Cx<AfterBackward>, next: Next<AfterBackward>) -> Result<Done> {
    next.run(cx)
}

fn main() {}
