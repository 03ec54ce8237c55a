use trainer::prelude::*;

#[hook]
fn after_step(_: &mut Cx<AfterStep>) {}

fn add<T: Task>(one: trainer::TrainerBuilder<T>, other: trainer::TrainerBuilder<T>) {
    let _ = one.hook(|cx: &mut Cx<AfterStep>| println!("{}", cx.phase()));
    let _ = other.hook(after_step);
}

fn main() {}
