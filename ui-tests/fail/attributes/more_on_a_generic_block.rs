use trainer::prelude::*;

struct Mine<T>(T);

#[hook]
impl<T> Mine<T> {
    fn after_step(&mut self, _: &Cx<AfterStep>) {}
}

#[hook(more)]
impl<T> Mine<T> {
    fn after_epoch(&mut self, _: &Cx<AfterEpoch>) {}
}

fn main() {}
