use trainer::prelude::*;

use std::cell::Cell;

thread_local!(static KEPT: Cell<Option<&'static Tensor>> = const { Cell::new(None) });

#[hook]
fn after_loss(cx: &mut Cx<AfterLoss>) {
    KEPT.set(Some(cx.loss()));
}

fn main() {}
