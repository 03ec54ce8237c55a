use trainer::prelude::*;

struct Monitor;

#[hook]
impl Monitor {
    fn after_step(self: Box<Self>, _: &mut Cx<AfterStep>) {}
}

fn main() {}
