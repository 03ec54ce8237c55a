//! Timed entries, for profiling.

use super::super::definition::Shim;
use super::{Entry, HookId, Range, Row, Table, as_u32};
use crate::moment::MomentKind;
use crate::phase::Phase;
use crate::tree;

impl Table {
    /// Returns the same table with entries that measure: `hook` in place of each hook, `operation`
    /// outermost around each operation, and `body` innermost around an operation with hooks.
    pub(crate) fn timed(self, hook: Shim, operation: Shim, body: Shim) -> Self {
        let mut entries = Vec::with_capacity(self.entries.len() * 2);
        let rows: Box<[Row]> = (tree::moments().iter().enumerate())
            .map(|(moment, info)| {
                Phase::ALL.map(|phase| {
                    let (start, hooks) = (as_u32(entries.len()), self.range(moment, phase));
                    let is_operation = info.kind == MomentKind::Operation;
                    let of_moment = |call| Entry { call, slot: as_u32(moment), hook: HookId::NONE };
                    if is_operation {
                        entries.push(of_moment(operation));
                    }
                    let timed = |index| Entry { call: hook, ..self.entry(index) };
                    entries.extend(hooks.indices().map(timed));
                    if is_operation && !hooks.is_empty() {
                        entries.push(of_moment(body));
                    }
                    Range { start, end: as_u32(entries.len()) }
                })
            })
            .collect();
        Table { rows, entries, watching: [true; Phase::ALL.len()], ..self }
    }
}
