use trainer::prelude::*;

#[hook(main_only)]
fn note(_: &mut Cx<Main<AfterStep>>) {}

#[hook(main_only)]
fn other(_: &mut Cx<AfterStep>) {}

fn main() {}
