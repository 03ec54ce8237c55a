use trainer::prelude::*;

struct Id(u64);

#[derive(Batch)]
struct Sentences {
    tokens: Tensor,
    id: Id,
    ids: Vec<Option<Id>>,
}

fn main() {}
