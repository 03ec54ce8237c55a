use trainer::prelude::*;

mod rounds {
    trainer::lifecycle! {
        within step {
            /// Something was seen.
            point at_sight;
        }
    }
}

#[hook]
fn look(_: &mut Cx<rounds::AtSigt>) {}

fn main() {}
