use trainer::prelude::*;

fn build(task: impl Task) {
    let _ = Trainer::builder(task).optimizer(nn::Adam::default());
}

fn main() {}
