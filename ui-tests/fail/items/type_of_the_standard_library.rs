use trainer::prelude::*;

#[hook]
impl std::path::PathBuf {
    fn after_step(&mut self, _: &mut Cx<AfterStep>) {}
}

#[hook(state)]
impl<T> ::std::collections::HashMap<String, T> {
    fn after_step(&mut self, _: &mut Cx<AfterStep>) {}
}

fn main() {}
