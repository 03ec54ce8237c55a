use trainer::prelude::*;

#[hook(layer = "fc")]
fn log(cx: &mut Cx<AfterModuleForward>) {
    cx.log("one", 1.0);
}

fn main() {}
