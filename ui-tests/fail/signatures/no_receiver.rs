use trainer::prelude::*;

struct Monitor;

#[hook]
impl Monitor {
    fn after_step(_: &mut Cx<AfterStep>) {}
}

fn main() {}
