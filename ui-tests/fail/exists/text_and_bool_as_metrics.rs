use trainer::prelude::*;

#[hook]
fn note(cx: &Cx<AfterStep>) {
    cx.log("text", "done");
}

#[hook]
fn other(cx: &Cx<AfterStep>) {
    cx.log("flag", cx.is_main());
}

fn main() {}
