use trainer::prelude::*;

fn add<T: Task>(builder: trainer::TrainerBuilder<T>) {
    let _ = builder.on::<Step>("step", |_| {});
}

fn main() {}
