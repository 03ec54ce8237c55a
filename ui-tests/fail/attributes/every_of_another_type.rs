use trainer::prelude::*;

const N: f64 = 2.0;

#[hook(every = N)]
fn note(_: &Cx<AfterStep>) {}

struct Watch {
    every: String,
}

#[hook]
impl Watch {
    #[hook(every = self.every)]
    fn note(&mut self, _: &Cx<AfterStep>) {}
}

fn main() {}
