use trainer::prelude::*;

struct Count {
    n: u64,
}

#[hook(every = &self.n)]
impl Count {
    fn count(&mut self, _: &Cx<AfterLoss>) {
        self.n += 1;
    }
}

fn main() {}
