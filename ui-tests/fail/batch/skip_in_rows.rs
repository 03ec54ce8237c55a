use trainer::prelude::*;

#[derive(Batch, Rows)]
struct Sentences {
    tokens: Tensor,
    #[batch(skip)]
    text: String,
}

fn main() {
    let _ = InMemory::new(Sentences { tokens: Tensor::from(1), text: String::new() });
}
