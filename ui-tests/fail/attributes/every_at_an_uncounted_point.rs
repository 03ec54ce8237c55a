use trainer::prelude::*;

#[hook(every = 3)]
fn before_fit(_: &mut Cx<BeforeFit>) {}

fn main() {}
