use trainer::prelude::*;

#[hook]
fn after_step(_: &mut Cx<AfterStep>) -> Result<f64> {
    Ok(0.5)
}

fn main() {}
