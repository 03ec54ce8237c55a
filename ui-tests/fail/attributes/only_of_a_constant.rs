use trainer::prelude::*;

struct Count {
    n: u64,
}

#[hook(only = Self::PHASES)]
impl Count {
    const PHASES: [Phase; 2] = [Phase::Train, Phase::Valid];

    fn count(&mut self, _: &Cx<AfterLoss>) {
        self.n += 1;
    }
}

fn main() {}
