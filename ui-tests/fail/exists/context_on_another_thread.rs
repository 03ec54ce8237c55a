use trainer::prelude::*;

#[hook]
fn logs(cx: &Cx<AfterStep>) {
    std::thread::scope(|scope| {
        scope.spawn(|| cx.log("x", 1.0));
    });
}

#[hook]
fn skips(cx: &mut Cx<BeforeStep>) {
    std::thread::scope(|scope| {
        scope.spawn(|| cx.skip_batch());
    });
}

fn main() {}
