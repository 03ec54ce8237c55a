use trainer::prelude::*;

trainer::lifecycle! {
    within step {
        /// A moment of a step.
        point at_moment;
    }
}

#[hook]
fn after_module_forward(cx: &mut Cx<AfterModuleForward>) -> Result<()> {
    cx.fire::<AtMoment>()
}

fn main() {}
