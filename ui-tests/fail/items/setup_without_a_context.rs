use trainer::prelude::*;

struct Monitor;

#[hook]
impl Monitor {
    fn after_step(&mut self, _: &mut Cx<AfterStep>) {}
    fn setup(&mut self) {}
}

fn main() {}
