use trainer::prelude::*;

type At<'a> = &'a Cx<AfterStep>;

struct Count(u64);

#[hook]
impl Count {
    fn count(&mut self, cx: At<'_>) {
        println!("{} {}", self.0, cx.counters().batches_seen);
    }
}

fn main() {}
