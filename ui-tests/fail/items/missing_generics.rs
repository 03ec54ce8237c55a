use trainer::prelude::*;

struct Monitor<T>(T);

#[hook]
impl Monitor {
    fn after_step(&mut self, _: &mut Cx<AfterStep>) {}
}

fn main() {}
