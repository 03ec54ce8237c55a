use trainer::prelude::*;

#[hook]
fn after_bakward(_: &mut Cx<AfterBackward>) {}

#[hook]
fn befor_fit(_: &mut Cx<BeforeFit>) {}

fn main() {}
