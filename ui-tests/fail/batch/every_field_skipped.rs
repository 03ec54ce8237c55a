use trainer::prelude::*;

#[derive(Batch)]
struct Named {
    #[batch(skip)]
    name: String,
}

fn main() {}
