//! [`MainOnlyGuard`]: refusing collectives in hooks that run on rank 0 only.

use std::cell::Cell;

use super::call::quoted;
use crate::error::{Error, Result};

thread_local! {
    /// Whether this thread runs a hook on rank 0 only.
    static IS_RUNNING: Cell<bool> = const { Cell::new(false) };
}

/// Marks the current thread as running a hook on rank 0 only, until the guard is dropped.
/// Collectives on this thread then return an error at once instead of waiting for ranks that never
/// call them.
#[derive(Debug)]
pub struct MainOnlyGuard {
    is_nested: bool,
}

impl MainOnlyGuard {
    /// Marks the current thread.
    #[inline]
    #[must_use]
    pub fn begin() -> Self {
        MainOnlyGuard { is_nested: IS_RUNNING.replace(true) }
    }
}

impl Drop for MainOnlyGuard {
    #[inline]
    fn drop(&mut self) {
        IS_RUNNING.set(self.is_nested);
    }
}

/// Returns an error if this thread runs a hook on rank 0 only. `what` names the collective.
pub(super) fn check(what: &str) -> Result<()> {
    if !IS_RUNNING.get() {
        return Ok(());
    }
    Err(Error::usage(format!(
        "{} is a collective, which all ranks must call, but this hook has `Main` in its context and runs on rank 0 only: \
         remove `Main`, and limit what only rank 0 does with `if cx.is_main()`",
        quoted(what)
    )))
}
