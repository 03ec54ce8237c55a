use trainer::prelude::*;

#[hook]
fn one(_: &Cx<AfterStep>) {}

#[hook]
fn two(_: &Cx<AfterStep>) {}

#[hook(before = optional(one, two))]
fn after_step(_: &Cx<AfterStep>) {}

fn main() {}
