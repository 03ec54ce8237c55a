use trainer::prelude::*;

#[derive(Batch)]
struct Sentences<'a> {
    tokens: Tensor,
    #[batch(skip)]
    text: &'a str,
}

fn main() {}
