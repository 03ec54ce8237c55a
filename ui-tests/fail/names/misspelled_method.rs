use trainer::prelude::*;

struct Monitor;

#[hook]
impl Monitor {
    fn note(&mut self, _: &mut Cx<BeforeSte>) {}
}

fn main() {}
