use trainer::prelude::*;

struct Monitor;

#[hook]
impl Monitor {
    fn after_step(&mut self, _: &mut Cx<AfterStep>) {}
}

#[hook]
impl Monitor {
    fn after_fit(&mut self, _: &mut Cx<AfterFit>) {}
}

fn main() {}
