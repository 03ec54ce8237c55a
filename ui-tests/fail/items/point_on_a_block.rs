use trainer::prelude::*;

struct Monitor;

#[hook(after_step)]
impl Monitor {
    fn after_step(&mut self, _: &mut Cx<AfterStep>) {}
}

fn main() {}
