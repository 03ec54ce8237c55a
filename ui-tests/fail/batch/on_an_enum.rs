use trainer::prelude::*;

#[derive(Batch)]
enum Images {
    Labelled(Tensor, Tensor),
    Bare(Tensor),
}

fn takes(_: impl Batch) {}

fn main() {
    takes(Images::Bare(Tensor::from(1)));
}
