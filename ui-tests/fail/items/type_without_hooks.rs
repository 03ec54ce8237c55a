use trainer::prelude::*;

struct Monitor;

fn add(builder: trainer::TrainerBuilder<Supervised<nn::Sequential, fn(&Tensor, &Tensor) -> Tensor>>) {
    let _ = builder.hook(Monitor);
}

fn main() {}
