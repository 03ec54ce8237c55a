use trainer::prelude::*;

struct Id(u64);

#[derive(Batch)]
struct Pair<T> {
    left: T,
    right: T,
}

fn takes(_: impl Batch) {}

fn main() {
    takes(Pair { left: Id(1), right: Id(2) });
}
