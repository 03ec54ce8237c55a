use trainer::prelude::*;

struct Count(u64);

#[hook]
impl Count {
    #[hook(every = 2)]
    const START: u64 = 0;

    fn count(&mut self, _: &Cx<AfterLoss>) {
        self.0 = Self::START;
    }
}

fn main() {}
