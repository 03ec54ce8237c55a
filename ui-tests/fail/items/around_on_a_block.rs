use trainer::prelude::*;

struct Scaled;

#[hook(around = backward)]
impl Scaled {
    fn after_step(&mut self, _: &mut Cx<AfterStep>) {}
}

fn main() {}
