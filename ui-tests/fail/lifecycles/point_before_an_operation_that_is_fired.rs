use trainer::prelude::*;

trainer::lifecycle! {
    within step {
        /// One half of a batch.
        operation half;
    }
}

#[hook]
fn halves(cx: &mut Cx<AfterTransfer>) -> Result<()> {
    cx.fire::<BeforeHalf>()
}

fn main() {}
