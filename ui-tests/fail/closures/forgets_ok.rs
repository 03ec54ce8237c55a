use trainer::prelude::*;

fn add<T: Task>(builder: trainer::TrainerBuilder<T>) {
    let _ = builder.on::<AfterStep>("batch", |cx| {
        cx.batch::<u8>()?;
    });
}

fn main() {}
