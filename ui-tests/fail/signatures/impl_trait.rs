use trainer::prelude::*;

#[hook]
fn after_step(_: impl Fn()) {}

fn main() {}
