use trainer::prelude::*;

#[derive(Batch, Rows)]
struct Pair {
    input: &Tensor,
    target: Tensor,
}

fn main() {}
