use trainer::prelude::*;

struct Monitor;

#[hook]
impl Monitor {
    fn note(&mut self, _: &Cx<Main<AfterValEpoch>>) {}
}

fn main() {}
