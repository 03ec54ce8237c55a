use trainer::prelude::*;

struct Count(u64);

#[hook]
impl Count {
    fn count(&mut self, batch: usize, cx: &Cx<AfterStep>) {
        println!("{} {batch} {}", self.0, cx.counters().batches_seen);
    }
}

fn main() {}
