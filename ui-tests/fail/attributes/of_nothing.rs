use trainer::prelude::*;

#[hook(of())]
fn after_module_forward(_: &mut Cx<AfterModuleForward>) {}

fn main() {}
