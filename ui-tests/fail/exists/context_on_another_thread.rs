use trainer::prelude::*;

fn on_another_thread(_: impl FnOnce() + Send) {}

#[hook]
fn logs(cx: &Cx<AfterStep>) {
    on_another_thread(|| cx.log("x", 1.0));
}

#[hook]
fn skips(cx: &mut Cx<BeforeStep>) {
    on_another_thread(|| cx.skip_batch());
}

fn main() {}
