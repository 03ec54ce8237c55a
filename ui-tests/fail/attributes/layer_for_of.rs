use trainer::prelude::*;

#[hook(after_module, layer = "fc")]
fn log(cx: &mut Cx<AfterModule>) {
    cx.log("one", 1.0);
}

fn main() {}
