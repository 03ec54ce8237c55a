//! [`Seen`]: what each hook was seen to change, and which hooks changed the same value at the same
//! moment.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::hook::definition::{Hook, Source};
use crate::hook::order::is_decided;
use crate::hook::table::Table;
use crate::run::changes::{Kind, Names};

/// The changes that hooks were seen to make.
#[derive(Default)]
pub(super) struct Seen {
    /// The kinds of values that each recorded hook changed.
    kinds: BTreeMap<usize, BTreeSet<Kind>>,
    /// For each row of the dispatch table, what its hooks have changed since the run last reached
    /// its moment.
    reached: HashMap<usize, Reached>,
    /// For each pair of hooks at the same moment, by their indexes, the values that both have
    /// changed.
    shared: BTreeMap<(usize, usize), BTreeSet<u32>>,
}

/// What the hooks at a moment have changed since the run last reached that moment.
#[derive(Default)]
struct Reached {
    /// The hook that was called last.
    last: Option<usize>,
    /// The index of the module that was computing.
    module: Option<u32>,
    /// The hooks that changed each value.
    changed_by: HashMap<u32, Vec<usize>>,
}

impl Seen {
    /// Notes that a hook is called.
    pub(super) fn begin<R>(&mut self, table: &Table<R>, module: Option<u32>, hook: usize) {
        self.kinds.entry(hook).or_default();
        let row = (table.hooks()[hook].definition.row)();
        let reached = self.reached.entry(row).or_default();
        // Hooks are called in the order of their indexes, so an index that has not increased means
        // that the moment has been reached again.
        if reached.module != module || reached.last.is_some_and(|last| hook <= last) {
            *reached = Reached { module, ..Reached::default() };
        }
        reached.last = Some(hook);
    }

    /// Notes that a hook has changed these values.
    pub(super) fn note<R>(&mut self, table: &Table<R>, hook: usize, changed: &[(u32, u64)], names: &Names) {
        let kinds = self.kinds.entry(hook).or_default();
        kinds.extend(changed.iter().map(|(number, _)| names.kind(*number)));
        let row = (table.hooks()[hook].definition.row)();
        let reached = self.reached.entry(row).or_default();
        for (number, _) in changed {
            let hooks = reached.changed_by.entry(*number).or_default();
            for other in hooks.iter().filter(|other| **other != hook) {
                let pair = (hook.min(*other), hook.max(*other));
                self.shared.entry(pair).or_default().insert(*number);
            }
            if !hooks.contains(&hook) {
                hooks.push(hook);
            }
        }
    }

    /// Returns what each hook was seen to change.
    pub(super) fn by_hook<R>(&self, table: &Table<R>) -> BTreeMap<usize, Vec<&'static str>> {
        let named = |(hook, kinds): (&usize, &BTreeSet<Kind>)| {
            let mut names: Vec<_> = kinds.iter().map(|kind| kind.name(table.hooks()[*hook].slot)).collect();
            names.dedup(); // the states of several other hooks
            (*hook, names)
        };
        self.kinds.iter().map(named).collect()
    }

    /// Returns a warning for each pair of hooks that changed the same value although nothing orders
    /// the two explicitly, and forgets all pairs.
    pub(super) fn conflicts<R>(&mut self, table: &Table<R>, names: &Names) -> Vec<String> {
        self.reached.clear();
        let found = std::mem::take(&mut self.shared).into_iter();
        let accidental = found.filter(|((first, second), _)| !is_deliberate(table, *first, *second));
        accidental
            .map(|((first, second), values)| {
                let values: Vec<&str> = values.into_iter().map(|number| names.name(number)).collect();
                warning(&table.hooks()[first], &table.hooks()[second], &values)
            })
            .collect()
    }
}

/// Whether the program explicitly determines the order of two hooks at the same moment.
fn is_deliberate<R>(table: &Table<R>, first: usize, second: usize) -> bool {
    let [one, other] = [first, second].map(|hook| &table.hooks()[hook]);
    // Methods of one block run in the order of the source.
    if one.definition.id == other.definition.id && one.slot == other.slot {
        return true;
    }
    // The program cannot change the keys of these hooks, so the order of its calls is the only way
    // to order them.
    if one.source == Source::Builder
        && other.source == Source::Builder
        && (is_same_type(one, other) || (one.definition.origin.is_own() && other.definition.origin.is_own()))
    {
        return true;
    }
    let row = |hook: &Hook<R>| (hook.definition.row)();
    let before = table.hooks().iter().take_while(|hook| row(hook) < row(one)).count();
    let of_moment = table.hooks()[before..].iter().take_while(|hook| row(hook) == row(one)).count();
    let hooks = &table.hooks()[before..before + of_moment];
    is_decided(hooks, first - before, second - before)
}

/// Whether two hooks belong to values of the same type, and thus have the same keys.
fn is_same_type<R>(one: &Hook<R>, other: &Hook<R>) -> bool {
    let is_closure = one.definition.origin.module.is_empty();
    !is_closure && one.definition.id == other.definition.id
}

/// The number of values that a warning lists.
const LISTED: usize = 2;

fn warning<R>(first: &Hook<R>, second: &Hook<R>, values: &[&str]) -> String {
    let moment = first.definition.moment.path();
    let (at, earlier) = match first.definition.goes_around() {
        false => (format!("at {moment}"), "runs first"),
        true => (format!("around {moment}"), "is further outside"),
    };
    let more = match values.len().saturating_sub(LISTED) {
        0 => String::new(),
        count => format!(" and {count} more"),
    };
    let listed = values.iter().take(LISTED).copied().collect::<Vec<_>>().join(", ");
    let [one, other] = [first, second].map(|hook| hook.definition.origin.placed());
    let name = first.definition.origin.name();
    format!(
        "the order of two hooks {at} that change the same values is not defined: {one} and {other} both changed {listed}{more}. \
         `{name}` {earlier} only because {}: {}",
        reason(first, second),
        advice(first, second)
    )
}

/// Returns the reason why the first of two hooks runs first although no explicit rule orders the
/// two.
fn reason<R>(first: &Hook<R>, second: &Hook<R>) -> &'static str {
    let [one, other] = [first, second].map(|hook| &hook.definition.origin);
    match (first.source, second.source) {
        (Source::Builder, Source::Builder) if first.slot < second.slot => "it was added to the builder first",
        (Source::Builder, Source::Discovery | Source::Task) => {
            "it was added to the builder, and the other one was not"
        }
        (Source::Discovery, Source::Task) => "the other one is a method of the task",
        (Source::Discovery, Source::Discovery) if one.krate() < other.krate() => {
            "its crate name comes first alphabetically"
        }
        (Source::Discovery, Source::Discovery)
            if one.krate() == other.krate() && one.rank() < other.rank() =>
        {
            "its path comes first alphabetically"
        }
        _ => "the other one has to wait for a third hook, whose order is not defined either",
    }
}

/// Returns advice on what to write to keep the order.
fn advice<R>(first: &Hook<R>, second: &Hook<R>) -> String {
    let [one, other] = [first, second].map(|hook| &hook.definition.origin);
    let ord = second.definition.ord.saturating_add(1);
    let keep = if other.module.is_empty() {
        format!("`HookOptions::named(\"{}\").ord({ord})`", other.path)
    } else if one.module.is_empty() {
        format!("`#[hook(ord = {ord})]` on `{}`", other.name())
    } else {
        format!("`#[hook(after = {})]` on `{}`", one.path, other.name())
    };
    format!("write {keep} to keep this order, or order them the other way around")
}

#[cfg(test)]
mod tests {
    use std::any::TypeId;

    use super::*;
    use crate::hook::definition::Origin;
    use crate::lifecycle::BeforeOptStep;
    use crate::run::{Hook, Table};
    use crate::run::{HookDef, Shim};

    fn hook<T: 'static>(source: Source, slot: Option<u32>, module: &'static str, path: &'static str) -> Hook {
        let origin = Origin::new(module, path, None, "src/lib.rs", [(0, 0); 2]).written(3, 1, "");
        let origin = if path.starts_with("trainer::") { origin.own() } else { origin };
        let definition =
            HookDef::new::<BeforeOptStep>(origin, TypeId::of::<T>(), 0, Shim::Point(|_, _| Ok(())));
        Hook { source, ..Hook::new(definition, slot) }
    }

    struct One;
    struct Other;

    #[test]
    fn a_warning_says_why_the_order_is_accidental() {
        let added = |slot, path| hook::<One>(Source::Builder, Some(slot), "", path);
        let found = |path| hook::<Other>(Source::Discovery, None, crate_of(path), path);
        let of_task = hook::<Other>(Source::Task, Some(0), "app", "app::Task");
        for (first, second, why, what) in [
            (added(1, "a"), added(2, "b"), "it was added to the builder first", "named(\"b\").ord(1)`"),
            (
                added(2, "b"),
                added(1, "a"),
                "the other one has to wait for a third hook",
                "named(\"a\").ord(1)`",
            ),
            (
                added(1, "z"),
                found("a::b"),
                "it was added to the builder, and",
                "`#[hook(ord = 1)]` on `a::b`",
            ),
            (found("a::z"), found("b::a"), "its crate name comes first", "`#[hook(after = a::z)]` on `b::a`"),
            (found("a::a"), found("a::b"), "its path comes first", "`#[hook(after = a::a)]` on `a::b`"),
            (found("a::b"), found("a::a"), "the other one has to wait", "`#[hook(after = a::b)]` on `a::a`"),
            (found("z::z"), of_task, "the other one is a method of the task", "on `app::Task`"),
        ] {
            let text = warning(&first, &second, &["the loss"]);
            assert!(text.contains(&format!("only because {why}")), "{text}");
            assert!(text.contains(what), "{text}");
        }
    }

    fn crate_of(path: &'static str) -> &'static str {
        crate::hook::definition::crate_of(path)
    }

    #[test]
    fn the_order_of_calls_is_deliberate_only_where_nothing_else_can_order_the_hooks() {
        let table = |hooks: [Hook; 2]| Table::freeze(hooks.into(), 0).unwrap_or_else(|_| unreachable!());
        let value = |slot, path| hook::<One>(Source::Builder, Some(slot), crate_of(path), path);
        let other = |slot, path| hook::<Other>(Source::Builder, Some(slot), crate_of(path), path);
        for (hooks, expected) in [
            ([value(1, "a::One"), other(2, "a::Other")], false),
            ([value(1, "a::One"), value(2, "a::One")], true),
            ([value(1, "a::One"), value(1, "a::One")], true),
            ([value(1, "trainer::hooks::One"), other(2, "trainer::hooks::Other")], true),
            ([value(1, "trainer::hooks::One"), other(2, "a::Other")], false),
            // Closures of one type, each with its own `ord`.
            (
                [
                    hook::<One>(Source::Builder, Some(1), "", "a"),
                    hook::<One>(Source::Builder, Some(2), "", "b"),
                ],
                false,
            ),
        ] {
            let paths = hooks.each_ref().map(|hook| hook.definition.origin.path.to_string());
            assert_eq!(is_deliberate(&table(hooks), 0, 1), expected, "{paths:?}");
        }
    }
}
