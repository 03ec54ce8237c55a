use trainer::prelude::*;

#[hook(after_step, ord = 3)]
fn note(_: &mut Cx<AfterStep>) {}

#[hook(after_step)]
fn other(_: &mut Cx<BeforeStep>) {}

fn main() {}
