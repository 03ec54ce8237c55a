//! Timed entries, for profiling.

use super::super::definition::{AroundShim, PointShim};
use super::{Entry, HookId, Range, Table, as_u32, is_operation};
use crate::phase::Phase;

/// The functions of the timed entries.
pub(crate) struct TimedShims {
    /// In place of each hook at a point.
    pub(crate) point: PointShim,
    /// In place of each hook around an operation.
    pub(crate) around: AroundShim,
    /// Outermost around each operation.
    pub(crate) operation: AroundShim,
    /// Innermost around each operation with hooks.
    pub(crate) body: AroundShim,
}

impl Table {
    /// Returns the same table with entries that measure.
    pub(crate) fn timed(mut self, shims: &TimedShims) -> Self {
        for entry in &mut self.points {
            entry.call = shims.point;
        }
        let hooks = std::mem::take(&mut self.arounds);
        for moment in (0..self.rows.len()).filter(|moment| is_operation(*moment)) {
            let measure = |call| Entry { call, slot: as_u32(moment), hook: HookId::NONE };
            for phase in Phase::ALL {
                let range = self.range(moment, phase);
                let start = as_u32(self.arounds.len());
                self.arounds.push(measure(shims.operation));
                let timed =
                    range.indices().map(|index| Entry { call: shims.around, ..hooks[index as usize] });
                self.arounds.extend(timed);
                if !range.is_empty() {
                    self.arounds.push(measure(shims.body));
                }
                self.rows[moment][phase as usize] = Range { start, end: as_u32(self.arounds.len()) };
            }
        }
        self.watching = [true; Phase::ALL.len()];
        self
    }
}
