use trainer::prelude::*;

#[hook]
fn watch(trainer: &Trainer) {
    println!("x");
}

fn main() {}
