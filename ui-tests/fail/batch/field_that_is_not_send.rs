use std::rc::Rc;

use trainer::prelude::*;

#[derive(Batch)]
struct Shared {
    xs: Rc<Tensor>,
    mask: Tensor,
}

fn main() {}
