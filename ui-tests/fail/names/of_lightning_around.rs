use trainer::prelude::*;

#[hook]
fn timed(cx: &mut Cx<OptimizerStep>, next: Next<OptimizerStep>) -> Result<Done> {
    next.run(cx)
}

fn main() {}
