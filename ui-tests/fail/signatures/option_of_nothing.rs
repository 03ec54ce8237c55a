use trainer::prelude::*;

#[hook]
fn note(_: &Cx<AfterStep>) -> Option<()> {
    None
}

fn main() {}
