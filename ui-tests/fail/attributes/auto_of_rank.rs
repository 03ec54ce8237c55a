use trainer::prelude::*;

#[derive(Default)]
struct Mine;

#[hook(auto = rank)]
impl Mine {
    fn after_step(&mut self, _: &mut Cx<AfterStep>) {}
}

fn main() {}
