use trainer::prelude::*;

#[hook(of = "encoder.*")]
fn after_step(_: &mut Cx<AfterStep>) {}

fn main() {}
