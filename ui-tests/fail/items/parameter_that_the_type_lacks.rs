use trainer::prelude::*;

struct Count(u64);

#[hook]
impl<T> Count {
    fn count(&mut self, _: &Cx<AfterStep>) {
        self.0 += 1;
    }
}

fn main() {}
