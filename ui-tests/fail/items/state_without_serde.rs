use trainer::prelude::*;

struct Counter {
    steps: u64,
}

#[hook(state)]
impl Counter {
    fn after_step(&mut self, _: &mut Cx<AfterStep>) {
        self.steps += 1;
    }
}

#[hook(state)]
fn free(_: &mut Cx<AfterStep>) {}

fn main() {}
