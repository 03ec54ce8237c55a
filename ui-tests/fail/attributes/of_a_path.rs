use trainer::prelude::*;

#[hook(of = encoder)]
fn after_module_forward(_: &mut Cx<AfterModuleForward>) {}

fn main() {}
