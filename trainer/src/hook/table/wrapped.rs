//! Entries around those of hooks and operations, for profiles and tapes.

use super::super::definition::{AroundShim, PointShim};
use super::{Entry, HookId, Range, Table, as_u32, is_operation};
use crate::phase::Phase;

/// The functions of the entries.
pub(crate) struct Shims {
    /// In place of each hook at a point.
    pub(crate) point: Option<PointShim>,
    /// In place of each hook around an operation.
    pub(crate) around: Option<AroundShim>,
    /// Outermost around each operation.
    pub(crate) operation: AroundShim,
    /// Innermost around each operation with hooks.
    pub(crate) body: AroundShim,
}

impl Table {
    /// Returns the same table with these entries. Those that an earlier call has added stay.
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
