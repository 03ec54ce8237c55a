use trainer::prelude::*;

fn add<T: Task>(builder: trainer::TrainerBuilder<T>) {
    let count = std::rc::Rc::new(3);
    let _ = builder.on::<AfterStep>("count", move |_| println!("{count}"));
}

fn main() {}
