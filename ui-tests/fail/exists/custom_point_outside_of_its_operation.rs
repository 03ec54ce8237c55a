use trainer::prelude::*;

trainer::lifecycle! {
    within step {
        /// A moment of a step.
        point at_moment;
    }
}

#[hook]
fn after_epoch(cx: &mut Cx<AfterEpoch>) -> Result<()> {
    cx.fire::<AtMoment>()
}

fn main() {}
