//! The frozen table: for every moment and phase, what runs, in order.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use super::definition::{Hook, HookDef, Shim};
use super::order::order;
use crate::phase::Phase;
use crate::tree;

/// A hook's place in its trainer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HookId(NonZeroU32);

impl HookId {
    /// Of the hook with this index: one more, so that an `Option` of it is one number.
    fn new(index: usize) -> Self {
        HookId(NonZeroU32::MIN.saturating_add(as_u32(index)))
    }

    fn index(self) -> usize {
        self.0.get() as usize - 1
    }
}

/// What dispatch reads for one call.
#[derive(Clone, Copy)]
pub(crate) struct Entry {
    pub(crate) call: Shim,
    pub(crate) slot: u32,
    pub(crate) hook: HookId,
}

/// Some of the entries, one after the other.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Range {
    start: u32,
    end: u32,
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

    /// The first of it, which is taken out.
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

type Row = [Range; Phase::ALL.len()];

/// What runs at every moment of every phase.
pub(crate) struct Table {
    rows: Box<[Row]>,
    entries: Box<[Entry]>,
    /// Those of each moment together, in their order.
    hooks: Box<[Hook]>,
}

impl Table {
    /// Resolves order and filters, for the process of this rank. `hooks` lists explicit ones in the order of `.hook`, then
    /// discovered ones in theirs, then the task's.
    ///
    /// # Errors
    ///
    /// Every cycle of `before` and `after`.
    pub(crate) fn freeze(hooks: Vec<Hook>, rank: u32) -> Result<Self, Vec<String>> {
        let mut by_moment: Vec<Vec<Hook>> = tree::moments().iter().map(|_| Vec::new()).collect();
        for hook in hooks {
            by_moment[(hook.definition.row)()].push(hook);
        }
        let mut table = (Vec::new(), Vec::new(), Vec::new());
        let mut cycles = Vec::new();
        for of_moment in by_moment {
            let ordered = order(of_moment).unwrap_or_else(|found| {
                cycles.extend(found);
                Vec::new()
            });
            let (rows, entries, hooks) = &mut table;
            rows.push(Phase::ALL.map(|phase| {
                let start = as_u32(entries.len());
                for (nth, hook) in ordered.iter().enumerate() {
                    let HookDef { call, main_only, .. } = hook.definition;
                    if hook.definition.phases().contains(phase) && (rank == 0 || !main_only) {
                        let id = HookId::new(hooks.len() + nth);
                        entries.push(Entry { call, slot: hook.slot.unwrap_or_default(), hook: id });
                    }
                }
                Range { start, end: as_u32(entries.len()) }
            }));
            hooks.extend(ordered);
        }
        if !cycles.is_empty() {
            return Err(cycles);
        }
        let (rows, entries, hooks) = table;
        Ok(Table { rows: rows.into(), entries: entries.into(), hooks: hooks.into() })
    }

    #[inline]
    pub(crate) fn range(&self, moment: usize, phase: Phase) -> Range {
        self.rows[moment][phase as usize]
    }

    #[inline]
    pub(crate) fn entry(&self, index: u32) -> Entry {
        self.entries[index as usize]
    }

    pub(crate) fn hook(&self, id: HookId) -> &Hook {
        &self.hooks[id.index()]
    }

    /// How many hooks go around operations.
    pub(crate) fn around_count(&self) -> usize {
        self.hooks.iter().filter(|hook| hook.definition.goes_around()).count()
    }

    /// The hooks of a moment in the order of dispatch, with the phases in which each is dispatched.
    pub(crate) fn dispatched(&self, moment: usize) -> Vec<(&Hook, Vec<Phase>)> {
        // Hooks are numbered in their order, so this is the order of dispatch in every phase.
        let mut hooks: BTreeMap<usize, Vec<Phase>> = BTreeMap::new();
        for phase in Phase::ALL {
            for index in self.range(moment, phase).indices() {
                hooks.entry(self.entry(index).hook.index()).or_default().push(phase);
            }
        }
        hooks.into_iter().map(|(hook, phases)| (&self.hooks[hook], phases)).collect()
    }
}

fn as_u32(number: usize) -> u32 {
    u32::try_from(number).expect("a trainer has fewer than 2³² hooks")
}
