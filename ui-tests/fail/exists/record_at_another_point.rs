use trainer::prelude::*;

#[hook]
fn after_step(cx: &mut Cx<AfterStep>) {
    let _ = cx.record();
}

#[hook]
fn after_record(cx: &mut Cx<AfterRecord>) {
    cx.log("records", 1);
}

#[hook]
fn ends(cx: &mut Cx<AfterRecord>) {
    cx.stop("enough");
}

fn main() {}
