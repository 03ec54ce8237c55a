use trainer::prelude::*;

#[hook]
fn scaled(cx: &mut Cx<Bakward>, next: Next<Bakward>) -> Result<Done> {
    next.run(cx)
}

fn main() {}
