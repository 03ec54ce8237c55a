use trainer::CanSkipBatch;
use trainer::prelude::*;

fn without_a_bound<P>(cx: &mut Cx<P>) {
    cx.skip_batch();
}

fn with_the_bound<P: CanSkipBatch>(cx: &mut Cx<P>) {
    cx.skip_batch();
}

#[hook]
fn on_rank_0(cx: &mut Cx<Main<BeforeStep>>) {
    with_the_bound(cx);
}

fn main() {}
