use trainer::prelude::*;

struct Monitor;

#[hook]
impl Monitor {
    #[hook(ord = 1)]
    #[hook(ord = 2)]
    fn after_step(&mut self, _: &mut Cx<AfterStep>) {}
}

fn main() {}
