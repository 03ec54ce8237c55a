use trainer::prelude::*;

#[hook(around = backward)]
fn scaled(_: &mut Cx<Backward>, _: f64) -> Result<Done> {
    Err(Error::msg("no next"))
}

fn main() {}
