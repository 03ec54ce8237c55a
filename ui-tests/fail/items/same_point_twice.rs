use trainer::prelude::*;

struct Watch;

#[hook]
impl Watch {
    fn after_step(&mut self, _: &mut Cx<AfterStep>) {}
    fn after_step(&mut self, _: &mut Cx<AfterStep>) {}
}

fn main() {}
