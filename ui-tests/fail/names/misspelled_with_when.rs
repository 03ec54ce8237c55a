use trainer::prelude::*;

fn is_late<P>(_: &Cx<P>) -> bool {
    true
}

#[hook(when = is_late)]
fn note(_: &Cx<AfterStpe>) {}

struct Watch;

#[hook(when = is_late)]
impl Watch {
    fn note(&mut self, _: &Cx<AfterStpe>) {}
}

fn main() {}
