use trainer::prelude::*;

#[hook(of = self.modules)]
fn after_module_forward(_: &mut Cx<AfterModuleForward>) {}

fn main() {}
