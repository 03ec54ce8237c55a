use trainer::prelude::*;

#[hook]
fn after_loss(cx: &mut Cx<AfterLoss>) {
    if cx.is_within::<Step>() {
        cx.log("seen", 1.0);
    }
}

fn main() {}
