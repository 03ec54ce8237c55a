use trainer::prelude::*;

struct Monitor;

#[hook]
impl Monitor {
    #[hook(crate = nowhere::trainer)]
    fn report(&mut self, _: &mut Cx<AfterStep>) {}
}

fn main() {}
