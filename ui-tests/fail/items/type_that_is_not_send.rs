use trainer::prelude::*;

use std::rc::Rc;

struct Monitor(Rc<()>);

#[hook]
impl Monitor {
    fn after_step(&mut self, _: &mut Cx<AfterStep>) {}
}

fn main() {}
