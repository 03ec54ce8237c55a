use trainer::prelude::*;

#[hook]
fn guarded(cx: &mut Cx<OptStep>, next: Next<OptStep>) -> Result<Done> {
    if cx.grads().count() > 0 { next.run(cx) } else { cx.drop_grads() }
}

fn main() {}
