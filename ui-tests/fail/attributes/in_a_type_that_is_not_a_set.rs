use trainer::prelude::*;

pub struct Clipping;

#[hook(in = Clipping)]
fn clip(_: &mut Cx<BeforeOptStep>) {}

fn main() {}
