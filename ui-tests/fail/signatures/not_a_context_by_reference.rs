use trainer::prelude::*;

#[hook]
fn after_step(_: &mut usize) {}

fn main() {}
