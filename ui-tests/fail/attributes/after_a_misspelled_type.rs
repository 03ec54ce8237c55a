use trainer::prelude::*;

#[hook(after = trainer::hooks::Progres)]
fn late(_: &mut Cx<AfterStep>) {}

fn main() {}
