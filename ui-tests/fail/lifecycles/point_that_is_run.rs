use trainer::prelude::*;

trainer::lifecycle! {
    within step {
        /// The loss is low.
        point at_low: loss;
    }
}

#[hook(only = train)]
fn halve(cx: &mut Cx<AfterLoss>) -> Result<()> {
    cx.run::<AtLow>(|_| Ok(()))?;
    Ok(())
}

fn main() {}
