use trainer::prelude::*;

#[hook(after = after_step)]
fn after_step(_: &mut Cx<AfterStep>) {}

struct Monitor;

#[hook(before = Monitor)]
impl Monitor {
    fn before_step(&mut self, _: &mut Cx<BeforeStep>) {}
}

fn main() {}
