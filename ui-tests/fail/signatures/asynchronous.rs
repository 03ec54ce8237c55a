use trainer::prelude::*;

#[hook]
async fn after_step(_: &mut Cx<AfterStep>) {}

fn main() {}
