//! All lifecycles of a program, as one tree.

use std::sync::OnceLock;

use crate::lifecycle::MOMENTS;
use crate::moment::{MomentInfo, MomentKind};
use crate::phase::{Phase, PhaseSet};

/// A `lifecycle!` of another crate, as the linker collects it.
#[derive(Debug)]
pub struct Declared {
    moments: &'static [MomentInfo],
    base: OnceLock<usize>,
}

/// How it is collected: by reference, because it knows where its moments begin.
pub struct Collected(pub &'static Declared);

inventory::collect!(Collected);

impl Declared {
    /// Its moments, in the order of its tree.
    #[must_use]
    pub const fn new(moments: &'static [MomentInfo]) -> Self {
        Declared { moments, base: OnceLock::new() }
    }

    /// The row of its first moment.
    #[inline]
    pub fn base(&'static self) -> usize {
        *self.base.get_or_init(|| {
            let before = others().into_iter().take_while(|other| !std::ptr::eq(*other, self));
            MOMENTS.len() + before.map(|other| other.moments.len()).sum::<usize>()
        })
    }
}

/// The lifecycles of other crates, in an order of their own: inventory's is undefined.
fn others() -> Vec<&'static Declared> {
    let mut others: Vec<_> = inventory::iter::<Collected>().map(|collected| collected.0).collect();
    others.sort_by_key(|declared| declared.moments.first().map(|first| (first.module, first.name)));
    others
}

/// Every moment of the program, by its row.
pub(crate) fn moments() -> &'static [&'static MomentInfo] {
    static ALL: OnceLock<Vec<&'static MomentInfo>> = OnceLock::new();
    ALL.get_or_init(|| {
        MOMENTS.iter().chain(others().into_iter().flat_map(|declared| declared.moments)).collect()
    })
}

/// The moments that lie in no operation, in the order of a run.
pub(crate) fn roots() -> impl Iterator<Item = usize> {
    (0..moments().len()).filter(|&moment| moments()[moment].within.is_none())
}

/// What an operation consists of, in the order of a run: the point before it, what lies in it, what is declared
/// elsewhere and runs in it `again`, the point after it.
pub(crate) fn children(operation: usize) -> Vec<Child> {
    let all = moments();
    let within = |&moment: &usize| all[moment].within.is_some_and(|within| within() == operation);
    let mut children: Vec<_> =
        (0..all.len()).filter(within).map(|moment| Child { moment, again: false }).collect();
    children.extend(all[operation].again.iter().map(|index| Child { moment: index(), again: true }));
    children.sort_by_key(|child| match all[child.moment].kind {
        _ if child.again => 1,
        MomentKind::Before => 0,
        MomentKind::Operation | MomentKind::Point => 1,
        MomentKind::After => 2,
    });
    children
}

/// A part of an operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Child {
    pub(crate) moment: usize,
    /// It is declared elsewhere, and runs here too.
    pub(crate) again: bool,
}

/// Visits a moment in these phases, and for an operation all that runs in it, again or not. `path` are the operations around
/// it, which are not entered a second time.
fn visit(moment: usize, phases: PhaseSet, path: &mut Vec<usize>, each: &mut impl FnMut(usize, PhaseSet)) {
    each(moment, phases);
    path.push(moment);
    for child in children(moment) {
        if child.again && path.contains(&child.moment) {
            continue;
        }
        visit(child.moment, reached(phases, child.moment), path, each);
    }
    path.pop();
}

/// The phases of what lies within: those of both. Where there is none the trainer leaves the phase of training for another, as for
/// `valid` within an epoch, and never the other way; a lifecycle of another crate cannot.
fn reached(outside: PhaseSet, moment: usize) -> PhaseSet {
    let own = moments()[moment].phases;
    match outside.and(own) {
        PhaseSet::NONE if moment < MOMENTS.len() && outside.contains(Phase::Train) => own,
        both => both,
    }
}

/// What runs in an operation, with the phases: everything that a hook around it waits for.
pub(crate) fn inside(operation: usize, phases: PhaseSet) -> Vec<(usize, PhaseSet)> {
    let mut found = Vec::new();
    for child in children(operation) {
        // The points before and after an operation do not lie within the hooks around it.
        if child.again || matches!(moments()[child.moment].kind, MomentKind::Operation | MomentKind::Point) {
            let phases = reached(phases, child.moment);
            visit(child.moment, phases, &mut vec![operation], &mut |moment, phases| {
                found.push((moment, phases));
            });
        }
    }
    found
}

/// For each moment the phases in which some entry of the trainer reaches it.
pub(crate) fn reachable() -> Vec<PhaseSet> {
    let mut reachable = vec![PhaseSet::NONE; moments().len()];
    for root in roots() {
        visit(root, moments()[root].phases, &mut Vec::new(), &mut |moment, phases| {
            reachable[moment] = reachable[moment].or(phases);
        });
    }
    reachable
}
