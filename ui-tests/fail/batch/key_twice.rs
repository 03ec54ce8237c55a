use trainer::prelude::*;

#[derive(Batch)]
struct Sentences {
    tokens: Tensor,
    #[batch(skip)]
    #[batch(skip)]
    text: String,
}

fn main() {}
