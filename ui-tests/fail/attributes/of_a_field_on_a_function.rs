use trainer::prelude::*;

#[hook(of = self.modules)]
fn after_module(_: &mut Cx<AfterModule>) {}

fn main() {}
