use trainer::prelude::*;
use trainer::tch::nn::Module;

#[hook]
fn around(cx: &mut Cx<Module>, next: Next<Module>) -> Result<Done> {
    next.run(cx)
}

#[hook]
fn look(_: &Cx<BeforeModule>) {}

fn apply(_: &impl Module) {}

fn main() {}
