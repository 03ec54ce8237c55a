use trainer::prelude::*;

struct Monitor;

#[hook]
impl Monitor {
    fn after_step(&mut self, _: &mut Cx<AfterStep>) {}
    #[cfg_attr(all(), hook(after_step))]
    fn late(&mut self, _: &mut Cx<AfterStep>) {}
}

fn main() {}
