use std::cell::Cell;

use trainer::prelude::*;

thread_local! {
    static KEPT: Cell<Option<&'static Tensor>> = const { Cell::new(None) };
}

#[hook]
fn after_loss(cx: &mut Cx<AfterLoss>) {
    KEPT.set(cx.batch::<Tensor>().ok());
}

fn main() {}
