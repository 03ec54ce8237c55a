use trainer::prelude::*;

#[hook(of = "a", of = "b")]
fn log(cx: &mut Cx<AfterModuleForward>) {
    cx.log("one", 1.0);
}

fn main() {}
