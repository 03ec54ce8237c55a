use trainer::prelude::*;

struct Watch;

#[hook]
impl Watch {
    fn note(&'static mut self, _: &Cx<AfterStep>) {}
}

fn main() {}
