//! The frozen table: for every moment and phase, what runs, in order.

use super::definition::{Hook, Shim};
use super::order;
use crate::lifecycle::MOMENTS;
use crate::moment::MomentInfo;
use crate::phase::Phase;

/// A hook's place in its trainer.
#[derive(Clone, Copy)]
pub(crate) struct HookId(u32);

/// What dispatch reads for one call.
#[derive(Clone, Copy)]
pub(crate) struct Entry {
    pub(crate) call: Shim,
    pub(crate) slot: u32,
    pub(crate) hook: HookId,
}

/// A row of the table: some of its entries, one after the other.
#[derive(Clone, Copy, Default)]
pub(crate) struct Range {
    start: u32,
    end: u32,
}

impl Range {
    /// Just this one.
    pub(crate) fn one(index: usize) -> Range {
        Range { start: as_u32(index), end: as_u32(index) + 1 }
    }

    #[inline]
    pub(crate) fn is_empty(self) -> bool {
        self.start == self.end
    }

    #[inline]
    pub(crate) fn indices(self) -> std::ops::Range<usize> {
        self.start as usize..self.end as usize
    }
}

type Row = [Range; Phase::ALL.len()];

/// What runs at every moment of every phase.
pub(crate) struct Table {
    rows: [Row; MOMENTS.len()],
    entries: Box<[Entry]>,
    hooks: Box<[Hook]>,
}

impl Table {
    /// Resolves order and filters. `hooks` lists the explicit ones first, in the order of `.hook`.
    pub(crate) fn freeze(mut hooks: Vec<Hook>) -> Self {
        order::sort(&mut hooks);
        let mut rows = [Row::default(); MOMENTS.len()];
        let mut entries = Vec::new();
        for (index, row) in rows.iter_mut().enumerate() {
            for phase in Phase::ALL {
                let start = entries.len();
                entries.extend(hooks.iter().enumerate().filter_map(|(nth, hook)| {
                    let runs = (hook.definition.row)() == index && hook.definition.phases().contains(phase);
                    runs.then_some(Entry {
                        call: hook.definition.call,
                        slot: hook.slot,
                        hook: HookId(as_u32(nth)),
                    })
                }));
                row[phase as usize] = Range { start: as_u32(start), end: as_u32(entries.len()) };
            }
        }
        Table { rows, entries: entries.into(), hooks: hooks.into() }
    }

    #[inline]
    pub(crate) fn range(&self, moment: usize, phase: Phase) -> Range {
        self.rows[moment][phase as usize]
    }

    #[inline]
    pub(crate) fn entry(&self, index: usize) -> Entry {
        self.entries[index]
    }

    pub(crate) fn hook(&self, id: HookId) -> &Hook {
        &self.hooks[id.0 as usize]
    }

    /// For each moment in the order of the tree: its hooks, and the phases in which each is dispatched.
    pub(crate) fn dispatched(&self) -> impl Iterator<Item = (&'static MomentInfo, Vec<(&Hook, Vec<Phase>)>)> {
        MOMENTS.iter().enumerate().map(|(moment, info)| {
            let mut hooks: Vec<(u32, Vec<Phase>)> = Vec::new();
            for phase in Phase::ALL {
                for index in self.range(moment, phase).indices() {
                    let hook = self.entries[index].hook.0;
                    match hooks.iter_mut().find(|(known, _)| *known == hook) {
                        Some((_, phases)) => phases.push(phase),
                        None => hooks.push((hook, vec![phase])),
                    }
                }
            }
            // Hooks are numbered in their order, so this is the order of dispatch in every phase.
            hooks.sort_by_key(|(hook, _)| *hook);
            (info, hooks.into_iter().map(|(hook, phases)| (&self.hooks[hook as usize], phases)).collect())
        })
    }
}

fn as_u32(number: usize) -> u32 {
    u32::try_from(number).expect("a trainer has fewer than 2³² hooks")
}
