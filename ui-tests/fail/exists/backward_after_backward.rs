use trainer::prelude::*;

#[hook]
fn after_backward(cx: &mut Cx<AfterBackward>) -> Result<()> {
    cx.backward(&cx.loss())
}

fn main() {}
