use trainer::prelude::*;

#[derive(Default)]
struct Watch<T>(T);

#[hook(auto)]
impl<T: Default + Send + 'static> Watch<T> {
    fn after_step(&mut self, _: &mut Cx<AfterStep>) {}
}

fn main() {}
