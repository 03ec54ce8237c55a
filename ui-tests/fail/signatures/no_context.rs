use trainer::prelude::*;

#[hook]
fn after_step() {}

fn main() {}
