use trainer::prelude::*;

#[hook(steps = 10)]
fn one(_: &Cx<AfterStep>) {}

#[hook(save)]
fn two(_: &Cx<AfterStep>) {}

#[hook(load)]
fn three(_: &Cx<AfterStep>) {}

#[hook(main_only)]
fn four(cx: &mut Cx<Backward>, next: Next<Backward>) -> Result<Done> {
    next.run(cx)
}

#[hook(epoch)]
fn five(_: &Cx<AfterStep>) {}

fn main() {}
