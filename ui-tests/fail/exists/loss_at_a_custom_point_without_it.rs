use trainer::prelude::*;

trainer::lifecycle! {
    within step {
        /// A moment of a step.
        point at_moment;
    }
}

#[hook]
fn look(cx: &mut Cx<AtMoment>) {
    cx.loss();
}

fn main() {}
