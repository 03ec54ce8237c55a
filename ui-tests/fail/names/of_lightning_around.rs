use trainer::prelude::*;

#[hook(around = optimizer_step)]
fn stepping(cx: &mut Cx<OptStep>, next: Next<OptStep>) -> Result<()> {
    next.run(cx)
}

fn main() {}
