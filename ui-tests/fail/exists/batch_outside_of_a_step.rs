use trainer::prelude::*;

#[hook]
fn before_epoch(cx: &mut Cx<BeforeEpoch>) -> Result<()> {
    cx.batch::<(Tensor, Tensor)>().map(drop)
}

fn main() {}
