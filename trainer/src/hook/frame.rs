//! [`Frame`]: a running operation that has hooks around it; and the indices of hooks and of their
//! entries in the table.

use std::num::NonZeroU32;

use crate::error::Result;
use crate::moment::MomentInfo;

/// The index of a hook in its trainer's table, plus one, so that `Option<HookId>` is one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HookId(NonZeroU32);

impl HookId {
    /// Marks an entry that a layer has added for an operation, and that belongs to no
    /// hook.
    pub(super) const NONE: HookId = HookId(NonZeroU32::MAX);

    /// Returns the ID of the hook with this index.
    pub(super) fn new(index: usize) -> Self {
        HookId(NonZeroU32::MIN.saturating_add(as_u32(index)))
    }

    pub(crate) fn index(self) -> usize {
        self.0.get() as usize - 1
    }
}

/// The indices of consecutive entries, either at points or around operations.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Range {
    pub(super) start: u32,
    pub(super) end: u32,
}

impl Range {
    #[inline]
    pub(crate) fn is_empty(self) -> bool {
        self.start == self.end
    }

    #[inline]
    pub(crate) fn indices(self) -> std::ops::Range<u32> {
        self.start..self.end
    }

    /// Removes and returns the first index.
    #[inline]
    pub(crate) fn take_first(&mut self) -> Option<u32> {
        let first = self.start;
        if self.is_empty() {
            return None;
        }
        self.start += 1;
        Some(first)
    }
}

/// Converts an index to the type in which the table stores it.
pub(super) fn as_u32(number: usize) -> u32 {
    u32::try_from(number).expect("a trainer has fewer than 2³² hooks")
}

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
pub(crate) type Rest<'a, R> = &'a mut Frame<dyn FnMut(&mut R) -> Result<()> + 'a>;
