use trainer::prelude::*;

trainer::lifecycle! {
    within step {
        /// A moment of a step.
        point at_moment;
    }
}

#[hook]
fn after_module(cx: &mut Cx<AfterModule>) -> Result<()> {
    cx.fire::<AtMoment>()
}

fn main() {}
