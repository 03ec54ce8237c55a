//! Checks that need all hooks of a trainer: that constraints have targets, that each hook can fire
//! and can borrow its value, and that all `around` hooks fit on the stack.

use std::any::TypeId;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::definition::{Hook, HookDef};
use super::instance::TASK;
use super::read::TaskTypes;
use crate::lifecycle::at;
use crate::moment::{Moment, MomentInfo};
use crate::moments::tree;
use crate::phase::PhaseSet;

/// Reports the mistakes that only the complete set of hooks reveals: constraints without a target,
/// hooks that can never fire, hooks that cannot borrow their value, and too many `around` hooks.
pub(crate) fn check<R>(hooks: &[Hook<R>], task: &TaskTypes, mistakes: &mut Vec<String>) {
    dangling(hooks, mistakes);
    two_stages(hooks, mistakes);
    no_interval(hooks, mistakes);
    never_fire(hooks, task.task(), mistakes);
    other_types(hooks, task, mistakes);
    run_within_themselves(hooks, mistakes);
    check_around(hooks, mistakes);
}

/// Reports hooks whose `every` is 0, whether it is a constant or read from the hook's value. The
/// `every` of a closure is checked elsewhere, together with the closure's other options.
fn no_interval<R>(hooks: &[Hook<R>], mistakes: &mut Vec<String>) {
    for Hook { definition, .. } in hooks {
        if definition.every == Some(0) && !definition.origin.module.is_empty() {
            let placed = definition.origin.placed();
            mistakes.push(format!("`every` of {placed} is 0: expected at least 1"));
        }
    }
}

/// Reports hooks that belong to more than one stage.
fn two_stages<R>(hooks: &[Hook<R>], mistakes: &mut Vec<String>) {
    for Hook { definition, .. } in hooks {
        let stages: BTreeSet<_> = definition.sets.iter().filter_map(|set| set.stage).collect();
        if let [one, other, ..] = stages.iter().filter_map(|stage| stage.name()).collect::<Vec<_>>()[..] {
            let placed = definition.origin.placed();
            mistakes.push(format!(
                "{placed} is in two stages, `{one}` and `{other}`: keep one, and order the hook relative to others with `before` and `after`"
            ));
        }
    }
}

/// Reports constraints whose target is absent or at a different moment. Optional constraints may
/// have no target, and sets may be empty.
fn dangling<R>(hooks: &[Hook<R>], mistakes: &mut Vec<String>) {
    let mut moments: HashMap<TypeId, Vec<&'static MomentInfo>> = HashMap::new();
    for hook in hooks {
        moments.entry(hook.definition.id).or_default().push(hook.definition.moment);
    }
    // A constraint on a block applies to each of its hooks, but is reported once.
    let mut reported = HashSet::new();
    for Hook { definition, .. } in hooks {
        for constraint in definition.constraints.iter().filter(|it| !it.optional && !it.target.is_set) {
            let placed = definition.origin.placed();
            let written = constraint.written();
            let path = constraint.path;
            match moments.get(&constraint.target.id) {
                None if constraint.inherited && !reported.insert((definition.id, constraint.target.id)) => {}
                None => mistakes.push(format!(
                    "{placed} has `{written}`, but this trainer has no such hook: add it, \
                     or write `{} = optional({path})` if it may be absent",
                    constraint.key()
                )),
                Some(of_target)
                    if !constraint.inherited
                        && of_target.iter().all(|moment| !std::ptr::eq(*moment, definition.moment)) =>
                {
                    let listed: Vec<_> =
                        of_target.iter().map(|moment| format!("`{}`", moment.path())).collect();
                    mistakes.push(format!(
                        "{placed} at `{}` has `{written}`, but `{path}` is at {}: constraints only order hooks at the same moment, \
                         so remove this constraint",
                        definition.moment.path(),
                        listed.join(", ")
                    ));
                }
                Some(_) => {}
            }
        }
    }
}

/// Reports hooks that can never run, because no entry point of the trainer reaches their moment, or
/// because their moment is reached only by tasks and hooks that this trainer does not have.
fn never_fire<R>(hooks: &[Hook<R>], task: TypeId, mistakes: &mut Vec<String>) {
    let reachable = tree::reachable();
    let present: HashSet<TypeId> = hooks.iter().map(|hook| hook.definition.id).chain([task]).collect();
    for Hook { definition, .. } in hooks {
        let by = definition.moment.by;
        if definition.phases().and(reachable[(definition.row)()]) == PhaseSet::NONE {
            let only: Vec<_> = definition.only.iter().map(|phase| format!("`{phase}`")).collect();
            let phases = if only.is_empty() { String::new() } else { format!(" in {}", only.join(" or ")) };
            mistakes.push(format!(
                "{} can never fire: no entry point of the trainer reaches `{}`{phases}: change the point or the \
                 phases of the hook, or exclude it with `.without(…)`",
                definition.origin.placed(),
                definition.moment.path()
            ));
        } else if !by.is_empty() && !by.iter().any(|(id, _)| present.contains(id)) {
            let names: Vec<_> = by.iter().map(|(_, name)| format!("`{name}`")).collect();
            mistakes.push(format!(
                "{} can never fire: `{}` is reached by {} only, which is neither the task nor a hook \
                 of this trainer: exclude the hook with `.without(…)`",
                definition.origin.placed(),
                definition.moment.path(),
                names.join(" or ")
            ));
        }
    }
}

/// Reports hooks that read the task, the batch or the prediction as a type that this trainer does
/// not use.
fn other_types<R>(hooks: &[Hook<R>], task: &TaskTypes, mistakes: &mut Vec<String>) {
    for Hook { definition, .. } in hooks {
        mistakes.extend(definition.reads.iter().filter_map(|read| task.mismatch(read)).map(|mismatch| {
            let placed = definition.origin.placed();
            format!("{placed} {mismatch}: use that type, or exclude the hook with `.without(…)`")
        }));
    }
}

/// Reports hooks that would run while their own value is borrowed. An `around` method borrows its
/// value until the operation ends, so no other method of that value can run inside the operation.
/// If the value is the task, the task cannot compute inside the operation either. The task is also
/// borrowed while it computes, so the task's hooks cannot run at its own modules.
fn run_within_themselves<R>(hooks: &[Hook<R>], mistakes: &mut Vec<String>) {
    let is_task = |slot: u32| usize::try_from(slot) == Ok(TASK);
    let borrows = |hook: &Hook<R>| hook.slot.filter(|slot| hook.definition.goes_around() || is_task(*slot));
    let mut by_value: BTreeMap<u32, Vec<&HookDef<R>>> =
        hooks.iter().filter_map(borrows).map(|slot| (slot, Vec::new())).collect();
    for hook in hooks {
        if let Some(of_value) = hook.slot.and_then(|slot| by_value.get_mut(&slot)) {
            of_value.push(&hook.definition);
        }
    }
    let computes = |moment: usize| tree::moments()[moment].computes;
    for (slot, of_value) in by_value {
        let is_task = is_task(slot);
        let borrows_task = [
            at::before_module_forward::index(),
            at::module_forward::index(),
            at::after_module_forward::index(),
        ];
        for own in of_value.iter().filter(|hook| is_task && borrows_task.contains(&(hook.row)())) {
            mistakes.push(format!(
                "{} is a hook of the task at `{}`, which runs while the task is computing and is therefore borrowed: move the hook to a separate type, \
                 or to a free function",
                own.origin.placed(),
                own.moment.path()
            ));
        }
        for outer in of_value.iter().filter(|hook| hook.goes_around() && (is_task || of_value.len() > 1)) {
            let row = (outer.row)();
            let inside = tree::inside(row, outer.phases());
            let name = outer.origin.placed();
            let path = outer.moment.path();
            if is_task && (computes(row) || inside.iter().any(|(moment, _)| computes(*moment))) {
                mistakes.push(format!(
                    "{name} wraps `{path}` and borrows the task throughout, but the task computes inside it: \
                     move the hook to a separate type, or to a free function"
                ));
            }
            for inner in &of_value {
                let is_inside = inside.iter().any(|(moment, phases)| {
                    *moment == (inner.row)() && phases.and(inner.phases()) != PhaseSet::NONE
                });
                if is_inside {
                    mistakes.push(format!(
                        "{name} wraps `{path}` and borrows its value throughout, so {} cannot run inside it: \
                         move one of them to a separate type, or limit its phases with `only`",
                        inner.origin.placed()
                    ));
                }
            }
        }
    }
}

/// The maximum number of `around` hooks in a trainer. This many fit on a thread's stack (2 MiB by
/// default), even if all of the wrapped operations are nested: each hook takes 0.8 to 1.4 KB in an
/// unoptimized build.
pub(crate) const MAX_AROUND: usize = 500;

/// Reports a mistake if there are more `around` hooks than fit on the stack.
fn check_around<R>(hooks: &[Hook<R>], mistakes: &mut Vec<String>) {
    let mut counts: BTreeMap<usize, (usize, &'static MomentInfo)> = BTreeMap::new();
    for Hook { definition, .. } in hooks.iter().filter(|hook| hook.definition.goes_around()) {
        counts.entry((definition.row)()).or_insert((0, definition.moment)).0 += 1;
    }
    let sum: usize = counts.values().map(|(count, _)| count).sum();
    if let Some((most, operation)) =
        counts.values().max_by_key(|(count, _)| count).filter(|_| sum > MAX_AROUND)
    {
        mistakes.push(format!(
            "there are {sum} `around` hooks, {most} of them around `{}`, but the stack only has room for {MAX_AROUND}: \
             merge some of them, or move them to the points before and after the operation",
            operation.path()
        ));
    }
}
