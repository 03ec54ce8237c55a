use trainer::prelude::*;

#[hook(of = "a", of = "b")]
fn log(cx: &mut Cx<AfterModule>) {
    cx.log("one", 1.0);
}

fn main() {}
