use trainer::prelude::*;

#[hook]
fn mine(_: &Cx<AfterStep>) -> Result<Done> {
    Ok(())
}

fn main() {}
