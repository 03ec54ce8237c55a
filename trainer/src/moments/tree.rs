//! The tree of all lifecycles in the program.

use std::collections::BTreeSet;
use std::sync::OnceLock;

use crate::lifecycle::MOMENTS;
use crate::moment::{MomentInfo, MomentKind, SEVERAL_VERSIONS};
use crate::phase::{Phase, PhaseSet};

/// A custom lifecycle, declared with `lifecycle!`.
#[derive(Debug)]
pub struct Lifecycle {
    moments: &'static [MomentInfo],
    /// The lifecycle's first row in the dispatch table, computed on first use.
    base: OnceLock<usize>,
}

/// The registration of a [`Lifecycle`]. Holds a reference, because the lifecycle caches the row of
/// its first moment.
pub struct LifecycleRegistration(pub &'static Lifecycle);

inventory::collect!(LifecycleRegistration);

impl Lifecycle {
    /// Declares a lifecycle with these moments, which must be in the order of the lifecycle's tree.
    #[must_use]
    pub const fn new(moments: &'static [MomentInfo]) -> Self {
        Lifecycle { moments, base: OnceLock::new() }
    }

    /// Returns the lifecycle's first row in the dispatch table, which belongs to its first moment.
    #[inline]
    pub fn base(&'static self) -> usize {
        *self.base.get_or_init(|| {
            let before = custom().into_iter().take_while(|other| !std::ptr::eq(*other, self));
            MOMENTS.len() + before.map(|other| other.moments.len()).sum::<usize>()
        })
    }
}

/// Returns the custom lifecycles, sorted by their first moment. Sorting is necessary because
/// `inventory` has no defined order.
fn custom() -> Vec<&'static Lifecycle> {
    let mut custom: Vec<_> =
        inventory::iter::<LifecycleRegistration>().map(|collected| collected.0).collect();
    custom.sort_by_key(|lifecycle| {
        lifecycle.moments.first().map(|first| (first.module, first.version, first.name))
    });
    custom
}

/// Returns the crates of which several versions declare moments.
fn several_versions() -> Vec<&'static str> {
    let firsts = custom().into_iter().filter_map(|lifecycle| lifecycle.moments.first());
    let of_crate =
        |first: &'static MomentInfo| (first.module.split("::").next().unwrap_or_default(), first.version);
    let crates: BTreeSet<_> = firsts.map(of_crate).collect();
    let crates: Vec<_> = crates.into_iter().map(|(krate, _)| krate).collect();
    crates.windows(2).filter(|pair| pair[0] == pair[1]).map(|pair| pair[0]).collect()
}

/// Returns every moment of the program, indexed by its row in the dispatch table.
pub(crate) fn moments() -> &'static [&'static MomentInfo] {
    static ALL: OnceLock<Vec<&'static MomentInfo>> = OnceLock::new();
    ALL.get_or_init(|| {
        SEVERAL_VERSIONS.get_or_init(several_versions);
        MOMENTS.iter().chain(custom().into_iter().flat_map(|lifecycle| lifecycle.moments)).collect()
    })
}

/// Returns the rows of the moments that are not within an operation, in the order of their
/// declaration.
pub(crate) fn roots() -> impl Iterator<Item = usize> {
    (0..moments().len()).filter(|&moment| moments()[moment].within.is_none())
}

/// Returns the children of an operation: the point before it, the moments within it, the moments
/// that it lists with `again`, and the point after it.
pub(crate) fn children(operation: usize) -> Vec<Child> {
    let all = moments();
    let within =
        (0..all.len()).filter(|moment| all[*moment].within.is_some_and(|within| within() == operation));
    let mut children: Vec<_> = within.map(|moment| Child { moment, again: false }).collect();
    children.extend(all[operation].again.iter().map(|index| Child { moment: index(), again: true }));
    children.sort_by_key(|child| match all[child.moment].kind {
        _ if child.again => 1,
        MomentKind::Before => 0,
        MomentKind::Operation | MomentKind::Point => 1,
        MomentKind::After => 2,
    });
    children
}

/// A child of an operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Child {
    pub(crate) moment: usize,
    /// Whether the moment is declared elsewhere and also runs within this operation.
    pub(crate) again: bool,
}

/// Visits a moment in the given phases and then, recursively, its children. `path` holds the
/// operations that contain the moment, so that they are not visited again.
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

/// Returns the phases in which a child runs: the phases that it has in common with its parent. If
/// there are none, the trainer switches from training to the phase of the child, as for `valid`
/// within an epoch. It never switches the other way, and a custom lifecycle cannot switch.
fn reached(outside: PhaseSet, moment: usize) -> PhaseSet {
    let own = moments()[moment].phases;
    match outside.and(own) {
        PhaseSet::NONE if moment < MOMENTS.len() && outside.contains(Phase::Train) => own,
        both => both,
    }
}

/// Returns all moments that run inside the hooks around an operation, with their phases.
pub(crate) fn inside(operation: usize, phases: PhaseSet) -> Vec<(usize, PhaseSet)> {
    let mut found = Vec::new();
    for child in children(operation) {
        // The points before and after an operation fire outside of the hooks around it.
        if child.again || matches!(moments()[child.moment].kind, MomentKind::Operation | MomentKind::Point) {
            let phases = reached(phases, child.moment);
            visit(child.moment, phases, &mut vec![operation], &mut |moment, phases| {
                found.push((moment, phases));
            });
        }
    }
    found
}

/// Returns, for each moment, the phases in which an entry point of the trainer reaches it.
pub(crate) fn reachable() -> Vec<PhaseSet> {
    let mut reachable = vec![PhaseSet::NONE; moments().len()];
    for root in roots() {
        visit(root, moments()[root].phases, &mut Vec::new(), &mut |moment, phases| {
            reachable[moment] = reachable[moment].or(phases);
        });
    }
    reachable
}
