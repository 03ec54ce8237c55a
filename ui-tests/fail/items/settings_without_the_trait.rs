use trainer::prelude::*;

struct Clip {
    max: f64,
}

#[hook(settings)]
impl Clip {
    fn after_backward(&mut self, _: &mut Cx<AfterBackward>) {
        self.max *= 1.0;
    }
}

#[hook(settings)]
fn free(_: &mut Cx<AfterStep>) {}

fn main() {}
