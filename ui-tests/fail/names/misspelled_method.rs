use trainer::prelude::*;

struct Monitor;

#[hook]
impl Monitor {
    fn before_ste(&mut self, _: &mut Cx<BeforeStep>) {}
}

fn main() {}
