//! Entries that measure what they call.

use super::{Entry, HookId, Range, Row, Table, as_u32};
use crate::moment::MomentKind;
use crate::phase::Phase;
use crate::profile::{timed_body, timed_hook, timed_operation};
use crate::tree;

impl Table {
    /// Returns the same table, whose entries also measure the hooks, the operations, and the bodies
    /// of operations that have hooks around them.
    pub(crate) fn timed(self) -> Self {
        let mut entries = Vec::with_capacity(self.entries.len() * 2);
        let rows: Box<[Row]> = (tree::moments().iter().enumerate())
            .map(|(moment, info)| {
                Phase::ALL.map(|phase| {
                    let (start, hooks) = (as_u32(entries.len()), self.range(moment, phase));
                    let is_operation = info.kind == MomentKind::Operation;
                    let operation = |call| Entry { call, slot: as_u32(moment), hook: HookId::NONE };
                    if is_operation {
                        entries.push(operation(timed_operation));
                    }
                    let timed = |index| Entry { call: timed_hook, ..self.entry(index) };
                    entries.extend(hooks.indices().map(timed));
                    if is_operation && !hooks.is_empty() {
                        entries.push(operation(timed_body));
                    }
                    Range { start, end: as_u32(entries.len()) }
                })
            })
            .collect();
        Table { rows, entries: entries.into(), hooks: self.hooks }
    }
}
