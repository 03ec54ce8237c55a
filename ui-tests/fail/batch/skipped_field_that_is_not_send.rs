use std::rc::Rc;

use trainer::prelude::*;

#[derive(Batch)]
struct Sentences {
    tokens: Tensor,
    #[batch(skip)]
    text: Rc<str>,
}

fn main() {}
