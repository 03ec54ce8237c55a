use trainer::prelude::*;

#[hook(auto)]
impl Missing {
    fn after_step(&mut self, _: &mut Cx<AfterStep>) {}
}

fn main() {}
