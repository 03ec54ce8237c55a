use trainer::prelude::*;

#[hook(around = optimizer_step)]
fn stepping(cx: &mut Cx<OptStep>, next: Next<OptStep>) -> Result<Done> {
    next.run(cx)
}

fn main() {}
