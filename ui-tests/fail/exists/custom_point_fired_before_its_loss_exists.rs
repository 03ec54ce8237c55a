use trainer::prelude::*;

trainer::lifecycle! {
    within step {
        /// The loss is higher than ever before.
        point at_spike: loss;
    }
}

#[hook]
fn before_loss(cx: &mut Cx<BeforeLoss>) -> Result<()> {
    cx.fire::<AtSpike>()
}

fn main() {}
