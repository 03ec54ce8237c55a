use trainer::prelude::*;

#[hook(of())]
fn after_module(_: &mut Cx<AfterModule>) {}

fn main() {}
