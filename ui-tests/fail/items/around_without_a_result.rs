use trainer::prelude::*;

#[hook]
fn scaled(cx: &mut Cx<Backward>, next: Next<Backward>) {
    next.run(cx);
}

fn main() {}
