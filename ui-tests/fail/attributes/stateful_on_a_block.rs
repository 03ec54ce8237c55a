use trainer::prelude::*;

struct Mine(u64);

#[hook(stateful)]
impl Mine {
    fn after_step(&mut self, _: &mut Cx<AfterStep>) {
        self.0 += 1;
    }
}

fn main() {}
