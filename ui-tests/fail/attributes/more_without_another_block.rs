use trainer::prelude::*;

struct Mine(u64);

#[hook(more)]
impl Mine {
    fn after_step(&mut self, _: &mut Cx<AfterStep>) {
        self.0 += 1;
    }
}

fn main() {}
