//! What can only be known once all hooks of a trainer are: that each can fire, and reach its value.

use std::any::TypeId;
use std::collections::{BTreeMap, HashSet};

use super::definition::{Hook, HookDef};
use super::order::dangling;
use crate::lifecycle::at;
use crate::moment::Moment;
use crate::phase::PhaseSet;
use crate::run::TASK;
use crate::tree;

/// Those hooks that run in the process of this rank, beside this task. What is wrong with any of them is a mistake.
pub(crate) fn checked(
    mut hooks: Vec<Hook>,
    task: TypeId,
    rank: u32,
    mistakes: &mut Vec<String>,
) -> Vec<Hook> {
    mistakes.extend(dangling(&hooks));
    never_fire(&hooks, task, mistakes);
    run_within_themselves(&hooks, mistakes);
    hooks.retain(|hook| rank == 0 || !hook.definition.main_only);
    hooks
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
                "{placed} can never fire: `{path}` is reached by {}, which is neither the task nor a hook of this trainer",
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
    let computes = [at::pred::index(), at::loss::index()];
    for (slot, of_value) in by_value {
        let is_task = usize::try_from(slot) == Ok(TASK);
        for outer in of_value.iter().filter(|it| it.goes_around() && (is_task || of_value.len() > 1)) {
            let row = (outer.row)();
            let inside = tree::inside(row, outer.phases());
            let (name, path) = (outer.origin.placed(), outer.moment.path());
            let computed = |it: &usize| row == *it || inside.iter().any(|(moment, _)| moment == it);
            if is_task && computes.iter().any(computed) {
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
