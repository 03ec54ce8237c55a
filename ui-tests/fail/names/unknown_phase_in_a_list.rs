use trainer::prelude::*;

#[hook(only(train, vaild))]
fn log(_: &mut Cx<AfterStep>) {}

fn main() {}
