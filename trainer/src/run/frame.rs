//! [`Frame`]: a running operation that has hooks around it.

use super::Run;
use crate::error::Result;
use crate::hook::table::{HookId, Range};
use crate::moment::MomentInfo;

/// How an operation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// No hook has decided yet how the operation ends.
    Open,
    /// The body did not start: a hook skipped it, or failed before running it.
    Skipped,
    /// The body or its replacement failed.
    Failed,
    /// A hook replaced the body.
    Replaced,
    /// The body ran.
    Ran,
}

impl Ending {
    /// Whether the operation counts as done, so that the point after it fires and counters advance.
    #[inline]
    pub(crate) fn took_place(self) -> bool {
        matches!(self, Ending::Replaced | Ending::Ran)
    }
}

/// A running operation that has `around` hooks.
pub struct Frame<B: ?Sized> {
    pub(crate) operation: &'static MomentInfo,
    /// The `around` hooks inside the one that is being called.
    pub(crate) remaining_hooks: Range,
    /// How the operation ends, as decided so far.
    pub(crate) ending: Ending,
    /// The innermost hook that skipped the operation, replaced it or handled its error.
    pub(crate) responsible: Option<HookId>,
    /// The body of the operation, which runs inside all of its `around` hooks, at most once.
    pub(crate) body: B,
}

/// The part of a running operation that is inside the `around` hook that is being called: the inner
/// hooks and the body. [`Next`](crate::Next) borrows it.
pub type Rest<'a> = &'a mut Frame<dyn FnMut(&mut Run) -> Result<()> + 'a>;
