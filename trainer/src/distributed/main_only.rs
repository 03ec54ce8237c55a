//! [`MainOnlyGuard`]: refusing collectives in hooks that run on rank 0 only.

use std::cell::Cell;

use super::call::quoted;
use crate::error::{Error, Result};

thread_local! {
    /// Whether this thread is running a hook that only rank 0 runs.
    static IS_RUNNING: Cell<bool> = const { Cell::new(false) };
}

/// Marks the current thread as running a hook that only rank 0 runs. Until the guard is dropped,
/// collectives on this thread return an error at once instead of waiting for ranks that never call
/// them.
#[derive(Debug)]
pub struct MainOnlyGuard {
    is_nested: bool,
}

impl MainOnlyGuard {
    /// Marks the current thread until the returned guard is dropped.
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

/// Returns an error if this thread is running a hook that only rank 0 runs. `what` names the
/// collective.
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
