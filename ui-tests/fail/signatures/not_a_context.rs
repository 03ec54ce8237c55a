use trainer::prelude::*;

#[hook]
fn after_step(_: usize) {}

fn main() {}
