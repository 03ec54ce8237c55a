use trainer::prelude::*;

trainer::lifecycle! {
    within step {
        /// Halves the loss.
        operation halving: loss in train {}
    }
}

#[hook(only = train)]
fn halve(cx: &mut Cx<AfterLoss>) -> Result<()> {
    cx.fire::<Halving>()
}

fn main() {}
