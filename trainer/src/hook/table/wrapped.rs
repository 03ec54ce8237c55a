//! Entries that layers add around operations, or that replace the entries of hooks.

use std::cell::Cell;

use super::super::definition::{AroundShim, PointShim};
use super::{Entry, HookId, Range, Table, as_u32, is_operation};
use crate::phase::Phase;

/// The functions of the entries that layers add or replace.
pub(crate) struct Shims<R> {
    /// The function to call instead of each hook at a point.
    pub(crate) point: PointShim<R>,
    /// The function to call instead of each hook around an operation.
    pub(crate) around: AroundShim<R>,
    /// The function to call around each operation, outside of all hooks around the operation.
    pub(crate) operation: AroundShim<R>,
    /// The function to call around the body of each operation that has `around` hooks, inside all
    /// of these hooks.
    pub(crate) body: AroundShim<R>,
}

impl<R> Table<R> {
    /// Returns the table with entries that call these functions.
    pub(crate) fn wrapped(mut self, shims: &Shims<R>) -> Self {
        self.points.iter_mut().for_each(|entry| entry.get_mut().call = shims.point);
        let hooks = std::mem::take(&mut self.arounds);
        for moment in (0..self.rows.len()).filter(|moment| is_operation(*moment)) {
            let added = |call| Cell::new(Entry { call, slot: as_u32(moment), hook: HookId::NONE });
            for phase in Phase::ALL {
                let range = self.range(moment, phase);
                let start = as_u32(self.arounds.len());
                self.arounds.push(added(shims.operation));
                let wrapped =
                    range.indices().map(|index| Entry { call: shims.around, ..hooks[index as usize].get() });
                self.arounds.extend(wrapped.map(Cell::new));
                if !range.is_empty() {
                    self.arounds.push(added(shims.body));
                }
                *self.rows[moment][phase as usize].get_mut() =
                    Range { start, end: as_u32(self.arounds.len()) };
            }
        }
        self.watching = [true; Phase::ALL.len()];
        self
    }
}
