use trainer::prelude::*;

struct Norms(u64);

#[hook(observes)]
impl Norms {
    fn norm(&mut self, _: &Cx<AfterStep>) {
        self.0 += 1;
    }
}

fn main() {}
