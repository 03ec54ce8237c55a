use trainer::prelude::*;

#[hook(AfterStep)]
fn log(cx: &mut Cx<AfterStep>) {
    cx.log("one", 1.0);
}

fn main() {}
