use trainer::prelude::*;

#[hook(of("", optional()))]
fn after_module(_: &mut Cx<AfterModule>) {}

fn main() {}
