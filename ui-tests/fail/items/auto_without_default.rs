use trainer::prelude::*;

struct Watch(f64);

#[hook(auto)]
impl Watch {
    fn after_step(&mut self, _: &mut Cx<AfterStep>) {}
}

fn main() {}
