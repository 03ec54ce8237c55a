use trainer::prelude::*;

mod rounds {
    trainer::lifecycle! {
        within step {
            /// Something was seen.
            point at_sight;
        }
    }
}

#[hook(rounds::at::at_sigt)]
fn look(_: &mut Cx<rounds::AtSight>) {}

fn main() {}
