use trainer::prelude::*;

struct Monitor;

#[hook]
impl Monitor {
    fn after_val_epoch(&mut self, _: &mut Cx<AfterValid>) {}
}

fn main() {}
