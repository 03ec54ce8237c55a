use trainer::prelude::*;

trainer::lifecycle! {
    within step {
        operation look: batch;
    }
}

#[hook]
fn see(cx: &mut Cx<BeforeLook>) -> Result<()> {
    cx.batch::<Tensor>().map(drop)
}

fn main() {}
