use std::cell::Cell;

use trainer::prelude::*;

thread_local! {
    static KEPT: Cell<Option<Next<'static, Backward>>> = const { Cell::new(None) };
}

#[hook]
fn keep(_: &mut Cx<Backward>, next: Next<Backward>) -> Result<Done> {
    KEPT.set(Some(next));
    Err(Error::msg("kept"))
}

fn main() {}
