use trainer::prelude::*;

struct Id(u64);

#[derive(Batch)]
struct Sentences {
    tokens: Tensor,
    #[batch(skip = true)]
    id: Id,
}

fn main() {}
