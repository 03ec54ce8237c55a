use trainer::prelude::*;

#[hook]
fn clip(_: &Cx<AfterStep>) {}

#[hook(in = clip)]
fn print(_: &Cx<AfterStep>) {}

fn main() {}
