use trainer::prelude::*;

fn add<T: Task>(builder: trainer::TrainerBuilder<T>) {
    let _ = builder
        .on::<AfterStep>("number", |_| 3)
        .on::<AfterStep>("text", |_| Err("on purpose"))
        .on::<AfterStep>("value", |cx| cx.batch::<u8>().cloned());
}

fn main() {}
