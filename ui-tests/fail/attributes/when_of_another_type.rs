use trainer::prelude::*;

fn is_late(_: &Cx<BeforeStep>) -> bool {
    true
}

#[hook(when = is_late)]
fn note(_: &Cx<AfterStep>) {}

fn count<P>(_: &Cx<P>) -> u64 {
    0
}

#[hook(when = count)]
fn other(_: &Cx<AfterStep>) {}

fn main() {}
