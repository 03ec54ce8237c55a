use trainer::prelude::*;

#[hook(only = val)]
fn after_step(_: &mut Cx<AfterStep>) {}

#[hook(only(eval, validation, "test"))]
fn before_step(_: &mut Cx<BeforeStep>) {}

fn main() {}
