use trainer::prelude::*;

trait Monitor {}

#[hook]
impl dyn Monitor {
    fn after_step(&mut self, _: &mut Cx<AfterStep>) {}
}

fn main() {}
