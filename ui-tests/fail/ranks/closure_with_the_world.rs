use trainer::TrainerBuilder;
use trainer::prelude::*;

fn add(builder: TrainerBuilder<impl Task>) -> TrainerBuilder<impl Task> {
    builder.on::<Main<AfterStep>>("sum", |cx| cx.world().barrier("end"))
}

fn main() {}
