use trainer::prelude::*;

#[hook]
fn howl(_: &mut Cx<WhenTheMoonIsFull>) {}

fn main() {}
