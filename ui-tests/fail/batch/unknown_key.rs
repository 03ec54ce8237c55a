use trainer::prelude::*;

struct Id(u64);

#[derive(Batch)]
struct Sentences {
    tokens: Tensor,
    #[batch(skp)]
    id: Id,
    #[batch(rename = "mask")]
    padding: Tensor,
}

fn main() {}
