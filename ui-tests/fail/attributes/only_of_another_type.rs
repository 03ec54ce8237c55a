use trainer::prelude::*;

struct Watch {
    phases: bool,
}

#[hook(only = self.phases)]
impl Watch {
    fn note(&mut self, _: &Cx<AfterStep>) {}
}

fn main() {}
