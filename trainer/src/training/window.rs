//! Accumulation windows: the batches whose gradients one optimizer step uses.

use super::decide::ends_pass;
use crate::checkpoint::progress::AccumulationWindow;
use crate::error::Result;
use crate::run::Run;

/// The size of the window that the next batch belongs to.
fn size(run: &Run) -> u64 {
    if run.fit.window.filled == 0 {
        run.settings.accumulate_in(run.progress.counters.epoch)
    } else {
        run.fit.window.size
    }
}

/// Whether the next batch fills the window.
pub(super) fn is_filled_by_next(run: &Run) -> bool {
    run.fit.window.filled + 1 >= size(run)
}

/// Adds the current batch to the window, and determines whether it is the last of the window.
pub(super) fn fill(run: &mut Run) {
    let ends_pass = ends_pass(run);
    let size = size(run);
    let window = &mut run.fit.window;
    window.size = size;
    window.filled += 1;
    window.is_last_micro_batch = window.filled >= window.size || window.is_last_of_pass || ends_pass;
    run.model.optimizers.next_batch();
}

/// Starts a new window after the current batch if it was the last of its window.
pub(super) fn leave(run: &mut Run) {
    if run.fit.window.is_last_micro_batch {
        run.fit.window.filled = 0;
    }
}

/// Drops the accumulated gradients and starts a new window.
pub(super) fn discard(run: &mut Run) -> Result<()> {
    run.fit.window = AccumulationWindow::default();
    run.model.optimizers.zero_grad()
}
