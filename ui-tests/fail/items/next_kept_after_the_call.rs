use std::cell::Cell;

use trainer::prelude::*;

thread_local! {
    static KEPT: Cell<Option<Next<'static, Backward>>> = const { Cell::new(None) };
}

#[hook(around = backward)]
fn keep(_: &mut Cx<Backward>, next: Next<Backward>) {
    KEPT.set(Some(next));
}

fn main() {}
