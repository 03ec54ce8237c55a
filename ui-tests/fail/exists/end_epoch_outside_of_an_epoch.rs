use trainer::prelude::*;

#[hook]
fn before_fit(cx: &mut Cx<BeforeFit>) {
    cx.end_epoch();
}

fn main() {}
