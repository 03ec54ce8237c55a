use trainer::prelude::*;

#[hook(after_step)]
#[hook(after_fit)]
fn log(_: &mut Cx<AfterStep>) {}

fn main() {}
