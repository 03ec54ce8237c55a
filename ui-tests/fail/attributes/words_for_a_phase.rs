use trainer::prelude::*;

#[hook(train_only)]
fn one(_: &Cx<AfterStep>) {}

#[hook(valid)]
fn two(_: &Cx<AfterStep>) {}

#[hook(eval = true)]
fn three(_: &Cx<AfterStep>) {}

#[hook(only = evaluation)]
fn four(_: &Cx<AfterStep>) {}

fn main() {}
