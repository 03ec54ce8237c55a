use trainer::prelude::*;

#[hook(after_step, after = trainer::hooks::Progres)]
fn late(_: &mut Cx<AfterStep>) {}

fn main() {}
