use trainer::prelude::*;

#[derive(Batch, Rows)]
struct Sentences {
    tokens: Tensor,
    text: String,
}

fn main() {}
