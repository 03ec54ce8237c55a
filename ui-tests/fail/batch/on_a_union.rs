use std::mem::ManuallyDrop;

use trainer::prelude::*;

#[derive(Batch)]
union Number {
    whole: i64,
    tensor: ManuallyDrop<Tensor>,
}

fn main() {}
