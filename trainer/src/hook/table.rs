//! The dispatch table: for every moment and phase, the hooks to call, in order.

mod wrapped;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use super::definition::{AroundShim, Hook, HookDef, PointShim, Shim};
use super::frame::{HookId, Range, as_u32};
use super::order::order;
use crate::lifecycle::at;
use crate::modules::is_for;
use crate::moment::{Moment, MomentKind};
use crate::moments::tree;
use crate::phase::{Phase, PhaseSet};

pub(crate) use wrapped::Shims;

/// An entry of the table: the data that dispatch reads for one call.
#[derive(Clone, Copy)]
pub(crate) struct Entry<C> {
    pub(crate) call: C,
    pub(crate) slot: u32,
    pub(crate) hook: HookId,
}

pub(crate) type Row = [Range; Phase::ALL.len()];

/// The dispatch table of a loop with the state `R`.
pub(crate) struct Table<R> {
    /// For each moment and phase, the range of its entries in `points` or `arounds`, without the
    /// hooks that rest.
    rows: Box<[[Cell<Range>; Phase::ALL.len()]]>,
    /// The moments and phases in which hooks rest, with the range of all of their entries.
    resting: RefCell<Vec<(usize, Phase, Range)>>,
    /// For each moment, the phases in which at least one rank has a hook at the moment.
    watched: Box<[PhaseSet]>,
    /// The entries of all points, followed by the entries of individual modules. The latter are
    /// added on the first call of each module.
    points: Vec<Cell<Entry<PointShim<R>>>>,
    /// The entries around all operations, followed by the entries around individual modules.
    arounds: Vec<Cell<Entry<AroundShim<R>>>>,
    /// For each phase, whether a hook, a profile or a tape observes modules.
    watching: [bool; Phase::ALL.len()],
    /// For each phase, whether a hook observes the backward passes of modules.
    watching_backward: [bool; Phase::ALL.len()],
    /// An ID that is unique among the tables of the program.
    id: u64,
    /// The rank of the process that the entries are for.
    rank: u32,
    /// The hooks, grouped by moment, in dispatch order.
    hooks: Box<[Hook<R>]>,
}

impl<R> Table<R> {
    /// Builds the table for the process of this rank, resolving order and filters. `hooks` lists
    /// the builder's hooks in the order in which they were added, then the discovered ones by
    /// origin, then the task's.
    ///
    /// # Errors
    ///
    /// Returns messages about the cycles of `before` and `after`.
    pub(crate) fn freeze(hooks: Vec<Hook<R>>, rank: u32) -> Result<Self, Vec<String>> {
        let mut by_moment: Vec<Vec<Hook<R>>> = tree::moments().iter().map(|_| Vec::new()).collect();
        for hook in hooks {
            by_moment[(hook.definition.row)()].push(hook);
        }
        let mut rows = Vec::new();
        let mut watched = Vec::new();
        let mut points = Vec::new();
        let mut arounds = Vec::new();
        let mut ordered_hooks = Vec::new();
        let mut cycles = Vec::new();
        for (moment, hooks_of_moment) in by_moment.into_iter().enumerate() {
            let ordered = order(hooks_of_moment).unwrap_or_else(|found| {
                cycles.extend(found);
                Vec::new()
            });
            let phases = ordered.iter().map(|hook| hook.definition.phases());
            watched.push(phases.fold(PhaseSet::NONE, PhaseSet::or));
            rows.push(Phase::ALL.map(|phase| {
                let start = if is_operation(moment) { arounds.len() } else { points.len() };
                for (nth, hook) in ordered.iter().enumerate() {
                    let HookDef { call, main_only, .. } = hook.definition;
                    if hook.definition.phases().contains(phase) && (rank == 0 || !main_only) {
                        let slot = hook.slot.unwrap_or_default();
                        let hook = HookId::new(ordered_hooks.len() + nth);
                        match call {
                            Shim::Point(call) => points.push(Cell::new(Entry { call, slot, hook })),
                            Shim::Around(call) => arounds.push(Cell::new(Entry { call, slot, hook })),
                        }
                    }
                }
                let end = if is_operation(moment) { arounds.len() } else { points.len() };
                Cell::new(Range { start: as_u32(start), end: as_u32(end) })
            }));
            ordered_hooks.extend(ordered);
        }
        if !cycles.is_empty() {
            return Err(cycles);
        }
        let is_watched = |moments: &[usize], phase: Phase| {
            moments.iter().any(|moment| !rows[*moment][phase as usize].get().is_empty())
        };
        let watching = Phase::ALL.map(|phase| is_watched(&module_moments(), phase));
        let watching_backward = Phase::ALL.map(|phase| is_watched(&backward_moments(), phase));
        static TABLES: AtomicU64 = AtomicU64::new(1);
        let id = TABLES.fetch_add(1, Ordering::Relaxed);
        Ok(Table {
            rows: rows.into(),
            resting: RefCell::default(),
            watched: watched.into(),
            points,
            arounds,
            watching,
            watching_backward,
            id,
            rank,
            hooks: ordered_hooks.into(),
        })
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// The rank of the process that the table is for.
    pub(crate) fn rank(&self) -> u32 {
        self.rank
    }

    /// Whether modules are observed in this phase.
    #[inline]
    pub(crate) fn is_watching(&self, phase: Phase) -> bool {
        self.watching[phase as usize]
    }

    /// Whether the backward passes of modules are observed in this phase.
    #[inline]
    pub(crate) fn is_watching_backward(&self, phase: Phase) -> bool {
        self.watching_backward[phase as usize]
    }

    /// Returns the module hooks of this phase.
    pub(crate) fn module_hooks(&self, phase: Phase) -> impl Iterator<Item = &Hook<R>> {
        module_moments().into_iter().flat_map(move |moment| self.ids(moment, phase)).map(|id| self.hook(id))
    }

    /// Returns the entries of a module moment for the module with this name. If not all hooks of
    /// the moment select the module, adds a separate range of entries.
    pub(crate) fn of_module(&mut self, moment: usize, name: &str) -> Row {
        Phase::ALL.map(|phase| {
            let all = self.range(moment, phase); // no hook at a module rests
            if is_operation(moment) {
                of_module(&mut self.arounds, all, &self.hooks, name)
            } else {
                of_module(&mut self.points, all, &self.hooks, name)
            }
        })
    }

    #[inline]
    pub(crate) fn range(&self, moment: usize, phase: Phase) -> Range {
        self.rows[moment][phase as usize].get()
    }

    /// Returns the entry of a point.
    #[inline]
    pub(crate) fn point(&self, index: u32) -> Entry<PointShim<R>> {
        self.points[index as usize].get()
    }

    /// Does not call a hook at a point again in this phase, until [`wake`](Table::wake). May be
    /// called while the hooks of the point are called: the entries of the later ones stay where
    /// they are.
    pub(crate) fn rest(&self, hook: HookId, phase: Phase) {
        let moment = (self.hook(hook).definition.row)();
        let row = &self.rows[moment][phase as usize];
        let range = row.get();
        let mut found = range.indices().filter(|index| self.point(*index).hook == hook);
        if is_operation(moment) {
            return;
        }
        if let Some(index) = found.next() {
            let entries = &self.points[range.start as usize..=index as usize];
            for nth in (1..entries.len()).rev() {
                entries[nth].swap(&entries[nth - 1]);
            }
            row.set(Range { start: range.start + 1, ..range });
            let mut resting = self.resting.borrow_mut();
            if !resting.iter().any(|(known, of, _)| (*known, *of) == (moment, phase)) {
                resting.push((moment, phase, range));
            }
        }
    }

    /// Calls the hooks again that rest in this phase.
    pub(crate) fn wake(&self, phase: Phase) {
        self.resting.borrow_mut().retain(|(moment, of, range)| {
            if *of == phase {
                let entries = &self.points[range.start as usize..range.end as usize];
                let mut ordered: Vec<_> = entries.iter().map(Cell::get).collect();
                ordered.sort_by_key(|entry| entry.hook.index()); // the order of dispatch
                entries.iter().zip(ordered).for_each(|(entry, next)| entry.set(next));
                self.rows[*moment][phase as usize].set(*range);
            }
            *of != phase
        });
    }

    /// Returns the range of a moment, with the hooks that rest.
    fn whole_range(&self, moment: usize, phase: Phase) -> Range {
        let resting = self.resting.borrow();
        let whole = resting.iter().find(|(known, of, _)| (*known, *of) == (moment, phase));
        whole.map_or_else(|| self.range(moment, phase), |(_, _, range)| *range)
    }

    /// Returns the entry of a hook around an operation.
    #[inline]
    pub(crate) fn around(&self, index: u32) -> Entry<AroundShim<R>> {
        self.arounds[index as usize].get()
    }

    /// Returns the hooks of a moment in a phase, in dispatch order.
    fn ids(&self, moment: usize, phase: Phase) -> impl Iterator<Item = HookId> {
        let ids = self.whole_range(moment, phase).indices().map(move |index| {
            if is_operation(moment) { self.around(index).hook } else { self.point(index).hook }
        });
        ids.filter(|id| *id != HookId::NONE)
    }

    /// Returns the phases in which at least one rank has a hook at this moment. The result is the
    /// same on all ranks, so that they make the same decisions.
    pub(crate) fn watched(&self, moment: usize) -> PhaseSet {
        self.watched[moment]
    }

    /// Returns all hooks. The position of a hook is its index.
    pub(crate) fn hooks(&self) -> &[Hook<R>] {
        &self.hooks
    }

    pub(crate) fn hook(&self, id: HookId) -> &Hook<R> {
        &self.hooks[id.index()]
    }

    /// Returns the index of a hook of this table.
    pub(crate) fn index_of(&self, hook: &Hook<R>) -> usize {
        let index = self.hooks.iter().position(|other| std::ptr::eq(other, hook));
        index.expect("the hook is in the table")
    }

    /// Returns the number of hooks around operations.
    pub(crate) fn around_count(&self) -> usize {
        self.hooks.iter().filter(|hook| hook.definition.goes_around()).count()
    }

    /// Returns the hooks of a moment in dispatch order, each with the phases in which it is
    /// dispatched.
    pub(crate) fn dispatched(&self, moment: usize) -> Vec<(&Hook<R>, Vec<Phase>)> {
        // Hooks are indexed in dispatch order, so the map's order is that of every phase.
        let mut hooks: BTreeMap<usize, Vec<Phase>> = BTreeMap::new();
        for phase in Phase::ALL {
            for id in self.ids(moment, phase) {
                hooks.entry(id.index()).or_default().push(phase);
            }
        }
        hooks.into_iter().map(|(hook, phases)| (&self.hooks[hook], phases)).collect()
    }
}

/// Returns the table rows of the module moments.
pub(crate) fn module_moments() -> [usize; 6] {
    let [before, after_grads, after] = backward_moments();
    [
        at::before_module_forward::index(),
        at::module_forward::index(),
        at::after_module_forward::index(),
        before,
        after_grads,
        after,
    ]
}

/// Returns the table rows of the moments of a module's backward pass.
fn backward_moments() -> [usize; 3] {
    let [before, after_grads] = moments_in_the_pass();
    [before, after_grads, at::after_module_backward::index()]
}

/// Returns the table rows of the moments that fire while a backward pass runs.
pub(crate) fn moments_in_the_pass() -> [usize; 2] {
    [at::before_module_backward::index(), at::after_module_grads::index()]
}

/// Whether this row of the table belongs to an operation rather than to a point.
fn is_operation(moment: usize) -> bool {
    tree::moments()[moment].kind == MomentKind::Operation
}

/// Returns the entries of `all` whose hooks select the module with this name. If these are not all
/// entries of `all`, adds a separate range of entries.
fn of_module<C: Copy, R>(
    entries: &mut Vec<Cell<Entry<C>>>,
    all: Range,
    hooks: &[Hook<R>],
    name: &str,
) -> Range {
    let own: Vec<Entry<C>> = (all.indices().map(|index| entries[index as usize].get()))
        .filter(|entry| entry.hook == HookId::NONE || is_for(&hooks[entry.hook.index()].modules, name))
        .collect();
    if own.len() == all.indices().len() {
        return all;
    }
    let start = as_u32(entries.len());
    entries.extend(own.into_iter().map(Cell::new));
    Range { start, end: as_u32(entries.len()) }
}
