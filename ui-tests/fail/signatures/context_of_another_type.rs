use trainer::prelude::*;

#[hook]
fn note(_: &mut Trainer<()>) {}

fn main() {}
