use trainer::prelude::*;

#[hook]
struct Monitor;

fn main() {}
