use trainer::prelude::*;

#[hook(of("", optional()))]
fn after_module_forward(_: &mut Cx<AfterModuleForward>) {}

fn main() {}
