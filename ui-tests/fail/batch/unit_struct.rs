use trainer::prelude::*;

#[derive(Batch)]
struct Nothing;

fn main() {}
