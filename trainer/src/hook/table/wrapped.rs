//! Entries that profiles and tapes add around operations, or that replace the entries of hooks.

use super::super::definition::{AroundShim, PointShim};
use super::{Entry, HookId, Range, Table, as_u32, is_operation};
use crate::phase::Phase;

/// The functions of the entries that a profile or a tape adds or replaces.
pub(crate) struct Shims {
    /// The function to call instead of each hook at a point; `None` to call the hook itself.
    pub(crate) point: Option<PointShim>,
    /// The function to call instead of each hook around an operation; `None` to call the hook
    /// itself.
    pub(crate) around: Option<AroundShim>,
    /// The function to call around each operation, outside of all hooks around the operation.
    pub(crate) operation: AroundShim,
    /// The function to call around the body of each operation that has `around` hooks, inside all
    /// of these hooks.
    pub(crate) body: AroundShim,
}

impl Table {
    /// Returns the table with entries that call these functions. Keeps the entries that earlier
    /// calls of this method added.
    pub(crate) fn wrapped(mut self, shims: &Shims) -> Self {
        if let Some(point) = shims.point {
            for entry in &mut self.points {
                entry.call = point;
            }
        }
        let hooks = std::mem::take(&mut self.arounds);
        for moment in (0..self.rows.len()).filter(|moment| is_operation(*moment)) {
            let added = |call| Entry { call, slot: as_u32(moment), hook: HookId::NONE };
            for phase in Phase::ALL {
                let range = self.range(moment, phase);
                let start = as_u32(self.arounds.len());
                self.arounds.push(added(shims.operation));
                let wrapped = range.indices().map(|index| match (hooks[index as usize], shims.around) {
                    (entry, Some(call)) if entry.hook != HookId::NONE => Entry { call, ..entry },
                    (entry, _) => entry,
                });
                self.arounds.extend(wrapped);
                if !range.is_empty() {
                    self.arounds.push(added(shims.body));
                }
                self.rows[moment][phase as usize] = Range { start, end: as_u32(self.arounds.len()) };
            }
        }
        self.watching = [true; Phase::ALL.len()];
        self
    }
}
