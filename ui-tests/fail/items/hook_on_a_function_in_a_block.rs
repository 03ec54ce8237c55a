use trainer::prelude::*;

struct Count;

impl Count {
    #[hook]
    fn after_step(_: &Cx<AfterStep>) {}

    #[hook]
    fn of_itself(_: &Cx<AfterEpoch>) -> Option<Self> {
        None
    }
}

fn main() {}
