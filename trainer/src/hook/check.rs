//! What can only be known once all hooks of a trainer are: that each can fire, and reach its value.

use std::any::TypeId;
use std::collections::{BTreeMap, HashMap, HashSet};

use super::definition::{Hook, HookDef};
use crate::lifecycle::{MOMENTS, at};
use crate::moment::{Moment, MomentInfo};
use crate::phase::PhaseSet;
use crate::run::TASK;
use crate::tree;

/// What is wrong with the hooks of a trainer of this task.
pub(crate) fn check(hooks: &[Hook], task: TypeId, mistakes: &mut Vec<String>) {
    dangling(hooks, mistakes);
    never_fire(hooks, task, mistakes);
    run_within_themselves(hooks, mistakes);
}

/// Edges that point at nothing, each with what to do about it.
fn dangling(hooks: &[Hook], mistakes: &mut Vec<String>) {
    let mut moments: HashMap<TypeId, Vec<&'static MomentInfo>> = HashMap::new();
    for hook in hooks {
        moments.entry(hook.definition.id).or_default().push(hook.definition.moment);
    }
    // A block's edge stands on each of its hooks, and is one mistake.
    let mut told = HashSet::new();
    for Hook { definition, .. } in hooks {
        for edge in definition.edges.iter().filter(|edge| !edge.optional) {
            let (placed, written, path) = (definition.origin.placed(), edge.written(), edge.path);
            match moments.get(&edge.target) {
                None if edge.inherited && !told.insert((definition.id, edge.target)) => {}
                None => mistakes.push(format!(
                    "{placed} says `{written}`, but this trainer has no such hook: add it, \
                     or say `{} = optional({path})` if it may be absent",
                    edge.key()
                )),
                Some(of_target)
                    if !edge.inherited
                        && of_target.iter().all(|it| !std::ptr::eq(*it, definition.moment)) =>
                {
                    let listed: Vec<_> =
                        of_target.iter().map(|moment| format!("`{}`", moment.path())).collect();
                    mistakes.push(format!(
                        "{placed} at `{}` says `{written}`, but `{path}` is at {}: only hooks of one moment have an order",
                        definition.moment.path(),
                        listed.join(", ")
                    ));
                }
                Some(_) => {}
            }
        }
    }
}

/// Hooks at moments that no entry of the trainer reaches, or that only another task or hook does.
fn never_fire(hooks: &[Hook], task: TypeId, mistakes: &mut Vec<String>) {
    let reachable = tree::reachable();
    let present: HashSet<TypeId> = hooks.iter().map(|hook| hook.definition.id).chain([task]).collect();
    for Hook { definition, .. } in hooks {
        let (placed, path, by) = (definition.origin.placed(), definition.moment.path(), definition.moment.by);
        if definition.phases().and(reachable[(definition.row)()]) == PhaseSet::NONE {
            let phases = if definition.only == PhaseSet::NONE {
                String::new()
            } else {
                format!(" in the phase {}", definition.only)
            };
            mistakes
                .push(format!("{placed} can never fire: no entry of the trainer reaches `{path}`{phases}"));
        } else if !by.is_empty() && !by.iter().any(|(id, _)| present.contains(id)) {
            let names: Vec<_> = by.iter().map(|(_, name)| format!("`{name}`")).collect();
            mistakes.push(format!(
                "{placed} can never fire: `{path}` is reached by {}, which is neither the task nor a hook \
                 of this trainer: leave it out, `.without(…)`",
                names.join(" or ")
            ));
        }
    }
}

/// A value is lent to its method for as long as that runs: around an operation that is all of it, so that
/// its other methods cannot be called in there; nor can the task compute while a hook of its own is around that.
fn run_within_themselves(hooks: &[Hook], mistakes: &mut Vec<String>) {
    let mut by_value: BTreeMap<u32, Vec<&HookDef>> = BTreeMap::new();
    for hook in hooks {
        if let Some(slot) = hook.slot {
            by_value.entry(slot).or_default().push(&hook.definition);
        }
    }
    // What an operation of another lifecycle computes, its task alone knows.
    let computes =
        |moment: usize| [at::pred::index(), at::loss::index()].contains(&moment) || moment >= MOMENTS.len();
    for (slot, of_value) in by_value {
        let is_task = usize::try_from(slot) == Ok(TASK);
        for outer in of_value.iter().filter(|it| it.goes_around() && (is_task || of_value.len() > 1)) {
            let row = (outer.row)();
            let inside = tree::inside(row, outer.phases());
            let (name, path) = (outer.origin.placed(), outer.moment.path());
            if is_task && (computes(row) || inside.iter().any(|(moment, _)| computes(*moment))) {
                mistakes.push(format!(
                    "{name} goes around `{path}` with the task's own value, which computes in there: \
                     move it to a type of its own, or to a free function"
                ));
            }
            for inner in &of_value {
                let reaches = |&(moment, phases): &(usize, PhaseSet)| {
                    moment == (inner.row)() && phases.and(inner.phases()) != PhaseSet::NONE
                };
                if inside.iter().any(reaches) {
                    mistakes.push(format!(
                        "{name} goes around `{path}` with its value, so that {} cannot have it in there: \
                         move one of them to a type of its own, or filter with `only`",
                        inner.origin.placed()
                    ));
                }
            }
        }
    }
}
