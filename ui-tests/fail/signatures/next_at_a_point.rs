use trainer::prelude::*;

#[hook]
fn after_backward(cx: &mut Cx<AfterBackward>, next: Next<AfterBackward>) -> Result<()> {
    next.run(cx)
}

fn main() {}
