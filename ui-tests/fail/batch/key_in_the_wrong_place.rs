use trainer::prelude::*;

#[derive(Batch)]
#[batch(skip)]
struct Sentences {
    #[batch(crate = trainer)]
    tokens: Tensor,
    #[batch]
    text: String,
}

fn main() {}
