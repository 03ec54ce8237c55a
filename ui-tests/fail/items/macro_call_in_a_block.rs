use trainer::prelude::*;

macro_rules! after_step {
    () => {
        fn after_step(&mut self, _: &mut Cx<AfterStep>) {}
    };
}

struct Monitor;

#[hook]
impl Monitor {
    after_step!();
}

fn main() {}
