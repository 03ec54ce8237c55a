use trainer::prelude::*;

struct Count {
    ord: i32,
}

#[hook(ord = self.ord)]
impl Count {
    fn count(&mut self, cx: &Cx<AfterStep>) {
        println!("{}", cx.counters().batches_seen);
    }
}

fn main() {}
