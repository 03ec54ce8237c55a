//! Accumulation windows: the batches whose gradients one optimizer step uses.

use crate::checkpoint::progress::AccumulationWindow;
use crate::error::Result;
use crate::run::Run;

/// Drops the accumulated gradients and starts a new window.
pub(super) fn discard(run: &mut Run) -> Result<()> {
    run.fit_mut().window = AccumulationWindow::default();
    run.optimizers_mut().zero_grad()
}
