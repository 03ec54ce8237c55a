use trainer::prelude::*;

#[hook]
fn after_step(_: &mut Cx<AfterStep>) -> i32 {
    3
}

fn main() {}
