//! [`Frame`]: a running operation and its outcome so far.

use super::Run;
use crate::error::Result;

/// The body of an operation, which runs inside all of its `around` hooks.
pub(crate) type Body = fn(&mut Run) -> Result<()>;

/// The outcome of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Done {
    /// The body did not start: a hook skipped it, or failed before it.
    Skipped,
    /// The body or its replacement failed.
    Failed,
    /// A hook replaced the body.
    Replaced,
    /// The body ran.
    Ran,
}

impl Done {
    /// Whether the operation counts as done, so that the point after it fires and counters advance.
    #[inline]
    pub(crate) fn took_place(self) -> bool {
        matches!(self, Done::Replaced | Done::Ran)
    }
}

/// A running operation that has `around` hooks.
#[derive(Clone, Copy)]
pub(crate) struct Frame {
    pub(crate) body: Body,
    /// The number that identifies this execution of the operation.
    pub(crate) id: u64,
    /// The outcome of the operation so far.
    pub(crate) done: Done,
    /// The table index of the innermost hook that skipped the operation, replaced it or handled its
    /// error.
    pub(crate) responsible: Option<u32>,
}

impl Default for Frame {
    fn default() -> Self {
        Frame { body: |_| Ok(()), id: 0, done: Done::Skipped, responsible: None }
    }
}
