use trainer::prelude::*;

#[hook(after_step, only(train, vaild))]
fn log(_: &mut Cx<AfterStep>) {}

fn main() {}
