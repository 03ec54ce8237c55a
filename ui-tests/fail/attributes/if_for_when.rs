use trainer::prelude::*;

fn is_late<P>(_: &Cx<P>) -> bool {
    true
}

#[hook(if = is_late)]
fn note(_: &Cx<AfterStep>) {}

fn main() {}
