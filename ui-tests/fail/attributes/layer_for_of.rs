use trainer::prelude::*;

#[hook(layer = "fc")]
fn log(cx: &mut Cx<AfterModule>) {
    cx.log("one", 1.0);
}

fn main() {}
