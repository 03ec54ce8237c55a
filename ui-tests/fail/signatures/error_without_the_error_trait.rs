use trainer::prelude::*;

struct Failure;

#[hook]
fn after_step(_: &mut Cx<AfterStep>) -> std::result::Result<(), Failure> {
    Err(Failure)
}

fn main() {}
