use trainer::prelude::*;

#[hook]
mod hooks {}

fn main() {}
