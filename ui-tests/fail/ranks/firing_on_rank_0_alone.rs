use trainer::prelude::*;

trainer::lifecycle! {
    within step {
        /// The loss is higher than ever before.
        point at_spike: loss;
    }
}

#[hook]
fn after_loss(cx: &mut Cx<Main<AfterLoss>>) -> Result<()> {
    cx.fire::<AtSpike>()
}

fn main() {}
