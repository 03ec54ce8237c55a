use trainer::prelude::*;

#[hook(of = encoder)]
fn after_module(_: &mut Cx<AfterModule>) {}

fn main() {}
