use trainer::prelude::*;

struct Monitor;

#[hook]
impl Monitor {
    fn after_step(&mut self, _: &mut Cx<BeforeStep>) {}
}

fn main() {}
