//! Accumulation windows: the batches whose gradients one optimizer step uses.

use super::decide::ends_pass;
use crate::checkpoint::progress::AccumulationWindow;
use crate::error::Result;
use crate::run::Run;

/// Adds the current batch to the window, and determines whether it is the last of the window.
pub(super) fn fill(run: &mut Run) {
    let full = run.settings().accumulate_in(run.counters().epoch);
    let ends_pass = ends_pass(run.requests(), run.fit(), run.progress());
    run.fit_mut().window.add_batch(full, ends_pass);
    run.optimizers_mut().next_batch();
}

/// Drops the accumulated gradients and starts a new window.
pub(super) fn discard(run: &mut Run) -> Result<()> {
    run.fit_mut().window = AccumulationWindow::default();
    run.optimizers_mut().zero_grad()
}
