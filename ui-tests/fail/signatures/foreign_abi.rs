use trainer::prelude::*;

#[hook]
extern "C" fn after_step(_: &mut Cx<AfterStep>) {}

fn main() {}
