use trainer::prelude::*;

struct Clip {
    max: f64,
}

#[hook(variables)]
impl Clip {
    fn after_backward(&mut self, _: &mut Cx<AfterBackward>) {
        self.max *= 1.0;
    }
}

#[hook(variables)]
fn free(_: &mut Cx<AfterStep>) {}

fn main() {}
