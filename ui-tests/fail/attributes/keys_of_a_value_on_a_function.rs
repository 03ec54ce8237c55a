use trainer::prelude::*;

#[hook(every = self.every)]
fn one(_: &Cx<AfterStep>) {}

#[hook(only = self.phases)]
fn two(_: &Cx<AfterStep>) {}

fn main() {}
