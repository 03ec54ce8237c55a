use trainer::prelude::*;

struct Mine(u64);

#[hook]
impl Mine {
    fn after_step(&mut self, _: &mut Cx<AfterStep>) {
        self.0 += 1;
    }
}

#[hook]
impl Mine {
    fn after_epoch(&mut self, _: &mut Cx<AfterEpoch>) {
        self.0 = 0;
    }
}

fn main() {}
