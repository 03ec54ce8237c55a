use trainer::prelude::*;

struct Monitor;

impl Monitor {
    #[hook]
    fn after_step(&mut self, _: &mut Cx<AfterStep>) {}
}

fn main() {}
