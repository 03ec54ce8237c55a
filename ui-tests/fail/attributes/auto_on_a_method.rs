use trainer::prelude::*;

#[derive(Default)]
struct Mine;

#[hook]
impl Mine {
    #[hook(auto)]
    fn after_step(&mut self, _: &Cx<AfterStep>) {}
}

fn main() {}
