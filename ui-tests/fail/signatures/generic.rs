use trainer::prelude::*;

#[hook]
fn after_step<T: Default>(_: &mut Cx<AfterStep>) {
    let _ = T::default();
}

fn main() {}
