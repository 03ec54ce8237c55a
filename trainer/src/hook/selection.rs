//! [`HookSelection`]: collects the hooks of a trainer and their values, and selects those that run.

use std::any::{Any, TypeId};
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::call::Loop;
use super::definition::{Hook, HookDef, Origin, Source};
use super::discovery::{Automatic, Discover, Linked, discover};
use super::instance::{Instance, TASK};
use super::selected::Selected;
use crate::error::{did_you_mean, nearest};
use crate::moment::Index;
use crate::phase::PhaseSet;

/// Creates a value for a trainer.
type Make<R> = fn() -> Instance<R>;

/// The hooks that the builder has collected, and its settings for selecting them.
pub(crate) struct HookSelection<R: Loop> {
    /// The hooks that were added.
    pub(crate) hooks: Vec<Hook<R>>,
    /// The values of the hooks that were added.
    pub(crate) instances: Vec<Instance<R>>,
    /// For each added value of a `#[hook(single)]` type, the ID of its group and the path of the
    /// type.
    pub(crate) single: Vec<(TypeId, String)>,
    pub(crate) task_hooks: Vec<HookDef<R>>,
    pub(crate) task_extras: R::Extras,
    /// The path of the generic type of the task, if its hooks cannot be found automatically.
    pub(crate) generic_task: Option<&'static str>,
    pub(crate) discover: Discover,
    pub(crate) required: Vec<String>,
    pub(crate) without: Vec<String>,
    /// The mistakes in the options of closures.
    pub(crate) mistakes: Vec<String>,
}

impl<R: Loop> HookSelection<R> {
    /// Creates a selection of every discovered hook.
    pub(crate) fn new() -> Self {
        HookSelection {
            hooks: Vec::new(),
            instances: Vec::new(),
            single: Vec::new(),
            task_hooks: Vec::new(),
            task_extras: R::Extras::default(),
            generic_task: None,
            discover: Discover::All,
            required: Vec::new(),
            without: Vec::new(),
            mistakes: Vec::new(),
        }
    }

    /// Adds a value and the hooks that are called with it.
    pub(crate) fn add_instance(
        &mut self,
        instance: Instance<R>,
        label: Option<&str>,
        hooks: impl IntoIterator<Item = HookDef<R>>,
    ) {
        let slot = Some(slot_after(self.instances.len()));
        self.instances.push(instance);
        let hook = |definition| Hook { label: label.map(str::to_owned), ..Hook::new(definition, slot) };
        self.hooks.extend(hooks.into_iter().map(hook));
    }

    /// Returns the hooks of a trainer with this number of ranks: the added ones, the discovered
    /// ones and the task's, except those that are excluded. Also returns the values of all hooks
    /// other than the task's. Adds the mistakes in the selection to `mistakes`.
    pub(crate) fn resolve<'a, T: Send + 'static>(
        self,
        task_value: &T,
        (linked, origins): (Vec<Linked<R>>, impl Iterator<Item = &'a Origin>),
        ranks: u32,
        mistakes: &mut Vec<String>,
    ) -> (Vec<Hook<R>>, Vec<Instance<R>>) {
        let HookSelection { mut hooks, mut instances, single, .. } = self;
        mistakes.extend(self.mistakes);
        check_closures(&hooks, mistakes);
        let mut first_of: HashMap<TypeId, &str> = HashMap::new();
        for (id, name) in &single {
            let other = match first_of.entry(*id) {
                Entry::Occupied(other) => *other.get(),
                Entry::Vacant(entry) => {
                    entry.insert(name);
                    continue;
                }
            };
            mistakes.push(if name == other {
                format!("hook `{name}` is `single` but was added twice: remove one")
            } else {
                format!("a trainer cannot have both `{other}` and `{name}`: remove one")
            });
        }
        // An added value replaces the automatic one.
        let explicit: HashSet<TypeId> = instances.iter().map(|instance| instance.type_id).collect();
        let task = TypeId::of::<T>();
        let mut automatic: Vec<(u32, Make<R>)> = Vec::new();
        let mut slots: HashMap<TypeId, u32> = HashMap::new();
        let linked = discover(linked, origins, &self.discover, ranks, &self.required, mistakes);
        for Linked { hook, auto } in linked {
            let slot = match auto {
                None => None,
                Some(Automatic { id, single: group, make, .. }) => {
                    let is_replaced = group.is_some_and(|of| first_of.contains_key(&of));
                    if is_replaced || explicit.contains(&id) || id == task {
                        continue;
                    }
                    Some(*slots.entry(id).or_insert_with(|| {
                        let slot = slot_after(instances.len() + automatic.len());
                        automatic.push((slot, make));
                        slot
                    }))
                }
            };
            hooks.push(Hook { source: Source::Discovery, ..Hook::new(hook, slot) });
        }
        if self.task_hooks.is_empty()
            && let Some(path) = self.generic_task
        {
            mistakes.push(format!(
                "the hooks of the task's generic type `{path}` are not found automatically: call `.task_hooks()`"
            ));
        }
        let of_task = |hook| Hook { source: Source::Task, ..Hook::new(hook, Some(TASK_SLOT)) };
        hooks.extend(self.task_hooks.into_iter().map(of_task));
        leave_out(&mut hooks, &self.without, mistakes);
        added_although_discovered(&hooks, &explicit, mistakes);
        compiled_twice(&hooks, mistakes);
        let used: HashSet<u32> = hooks.iter().filter_map(|hook| hook.slot).collect();
        for (slot, make) in automatic {
            instances.push(if used.contains(&slot) { make() } else { Instance::absent() });
        }
        for instance in &mut instances {
            (instance.observes, instance.may_fail) = (true, true);
        }
        for Hook { definition, slot, .. } in &hooks {
            // The task, in the first slot, is compared in any case.
            let index = slot.and_then(|slot| (slot as usize).checked_sub(TASK + 1));
            if let Some(instance) = index.and_then(|index| instances.get_mut(index)) {
                instance.observes &= definition.observes;
                instance.may_fail &= definition.may_fail;
                instance.writes |= definition.writes;
            }
        }
        select(&mut hooks, task_value, &instances, mistakes);
        (hooks, instances)
    }
}

/// Applies the options that hooks read from their value: `of = self.…`, `every = self.…` and
/// `only = self.…`.
fn select<R: Loop>(
    hooks: &mut [Hook<R>],
    task: &(dyn Any + Send),
    instances: &[Instance<R>],
    mistakes: &mut Vec<String>,
) {
    for hook in hooks {
        let (Some(by_value), Some(slot)) = (hook.definition.selected, hook.slot) else { continue };
        let value = match (slot as usize).checked_sub(TASK + 1) {
            None => Some(task),
            Some(index) => instances[index].value.as_deref(),
        };
        let Some(Selected { modules, every, phases }) = value.map(by_value) else { continue };
        let definition = &mut hook.definition;
        hook.modules = modules.unwrap_or_default();
        if definition.every.is_some() {
            definition.every = every;
        }
        let Some(phases) = phases else { continue };
        let placed = definition.origin.placed();
        let path = definition.moment.path();
        if phases == PhaseSet::NONE {
            mistakes.push(format!("the value of {placed} selects no phase: add one, or remove the hook"));
        }
        for phase in phases.iter().filter(|phase| !definition.moment.phases.contains(*phase)) {
            mistakes.push(format!(
                "the value of {placed} selects the phase `{phase}`, which never reaches `{path}`"
            ));
        }
        definition.only = phases;
    }
}

/// The index of the task among the run's instances.
const TASK_SLOT: u32 = TASK as u32;

/// Returns the slot of the value that is added after `instances` other values. Slot 0 is the
/// task's.
fn slot_after(instances: usize) -> u32 {
    u32::try_from(instances + 1).expect("fewer than 2³² hooks")
}

/// Removes excluded hooks, and reports paths that match no hook or are ambiguous.
fn leave_out<R>(hooks: &mut Vec<Hook<R>>, without: &[String], mistakes: &mut Vec<String>) {
    for path in without {
        let matched: Vec<&Origin> = hooks
            .iter()
            .map(|hook| &hook.definition.origin)
            .filter(|origin| origin.is_called(path))
            .collect();
        let versions: BTreeSet<_> = matched.iter().filter_map(|origin| origin.version).collect();
        if matched.is_empty() {
            mistakes.push(format!(
                "`.without(\"{path}\")` matches no hook of this trainer{}",
                meant(path, hooks)
            ));
        } else if versions.len() > 1 {
            let (krate, rest) = path.split_once("::").unwrap_or((path, ""));
            let each: Vec<_> =
                versions.iter().map(|version| format!("`{krate}@{version}::{rest}`")).collect();
            mistakes.push(format!(
                "`.without(\"{path}\")` matches hooks of several versions of the crate: write {}",
                each.join(" or ")
            ));
            // The hooks stay, so that hooks that name them are not reported, too.
            continue;
        }
        hooks.retain(|hook| !hook.definition.origin.is_called(path));
    }
}

/// Reports discovered functions that were also added as closures, `.on("name", my_hook)`.
fn added_although_discovered<R>(hooks: &[Hook<R>], added: &HashSet<TypeId>, mistakes: &mut Vec<String>) {
    let discovered = hooks.iter().filter(|hook| hook.source == Source::Discovery && hook.slot.is_none());
    for hook in discovered.filter(|hook| added.contains(&hook.definition.id)) {
        mistakes.push(format!(
            "{} is discovered, because it has `#[hook]`, and was added to the builder, too, so it would run twice: remove one of \
             the two",
            hook.definition.origin.placed()
        ));
    }
}

/// Reports files that the program contains twice, such as one with `mod hooks;` in both its library
/// and its binary, because their discovered hooks would run twice. A macro can write hooks of one
/// crate at one position, which are different hooks.
fn compiled_twice<R>(hooks: &[Hook<R>], mistakes: &mut Vec<String>) {
    let mut by_place: BTreeMap<_, Vec<&Origin>> = BTreeMap::new();
    for hook in hooks.iter().filter(|hook| hook.source == Source::Discovery) {
        let origin = &hook.definition.origin;
        let Origin { file, line, column, attribute, .. } = origin;
        let name = origin.method.or_else(|| origin.path.rsplit("::").next());
        let of_same_place = by_place.entry((*file, attribute[0], *line, *column, name)).or_default();
        let krate = (origin.krate(), origin.binary);
        let is_in_macro = attribute[0] != attribute[1];
        if of_same_place.iter().all(|other| !is_in_macro || (other.krate(), other.binary) != krate) {
            of_same_place.push(origin);
        }
    }
    let mut reported: BTreeMap<_, (&Origin, usize)> = BTreeMap::new();
    for ((file, ..), origins) in &by_place {
        if let [one, other, ..] = origins[..] {
            let modules = [one, other].map(|origin| (origin.module, origin.binary));
            reported.entry((*file, modules)).or_insert((one, 0)).1 += 1;
        }
    }
    for ((file, modules), (first, count)) in reported {
        let of = |(module, is_binary): (&str, bool)| {
            format!("`{module}` of the {}", if is_binary { "binary" } else { "library" })
        };
        let module = modules[0].0.rsplit("::").next().unwrap_or_default();
        let hooks = match count {
            1 => format!("its hook `{}` would run twice", first.name()),
            count => format!("its {count} hooks would run twice"),
        };
        mistakes.push(format!(
            "the file {file} is compiled twice, as {} and as {}, so {hooks}: remove one of the two `mod {module};`, and import the \
             other module instead",
            of(modules[0]),
            of(modules[1])
        ));
    }
}

/// Returns the suggestion for a path that matches no hook; empty if there is no suggestion.
fn meant<R>(path: &str, hooks: &[Hook<R>]) -> String {
    let origins = || hooks.iter().map(|hook| &hook.definition.origin);
    if origins().any(|origin| !path.is_empty() && origin.krate() == path) {
        return "; to exclude a crate, list only the others in `.discover(Discover::crates([…]))`".into();
    }
    let names: BTreeSet<String> =
        origins().flat_map(|origin| [origin.path.to_string(), origin.name()]).collect();
    // A name without its path.
    let end = format!("::{path}");
    let matched: Vec<_> =
        names.iter().filter(|name| name.ends_with(&end)).map(|name| format!("`{name}`")).collect();
    if !matched.is_empty() {
        return format!("; did you mean {}?", matched.join(" or "));
    }
    let similar = did_you_mean(path, names.iter().map(String::as_str));
    if !similar.is_empty() || path.contains("::") {
        return similar;
    }
    // A misspelled name without its path.
    let last = |name: &String| name.rsplit("::").next().unwrap_or_default().to_owned();
    let words: BTreeSet<String> = names.iter().map(last).collect();
    let word = nearest(path, words.iter().map(String::as_str));
    let name = word.and_then(|word| names.iter().find(|name| last(name) == word));
    name.map(|name| format!("; did you mean `{name}`?")).unwrap_or_default()
}

/// Reports closures without a name, and closures with the same name at the same point.
fn check_closures<R>(hooks: &[Hook<R>], mistakes: &mut Vec<String>) {
    let mut first: HashMap<(Index, &str), &Origin> = HashMap::new();
    for HookDef { origin, row, moment, .. } in hooks.iter().map(|hook| &hook.definition) {
        if !origin.module.is_empty() {
            continue;
        }
        let path = moment.path();
        let place = format!("{}:{}", origin.file, origin.line);
        if origin.path.is_empty() {
            mistakes.push(format!("the closure at `{path}` ({place}) has an empty name: choose a name, which `describe_hooks` and error messages will show"));
        } else if let Some(other) = first.insert((*row, &origin.path), origin) {
            mistakes.push(format!(
                "two closures at `{path}` have the name `{}` ({}:{} and {place}): rename one",
                origin.path, other.file, other.line
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hook::definition::Shim;
    use crate::hook::tests::toy::Toy;
    use crate::lifecycle::AfterStep;

    struct Old;
    struct New;

    fn hook<T: 'static>(path: &'static str, version: &'static str) -> Hook<Toy> {
        let origin = Origin::new("plugin", path, Some(version), "src/lib.rs", [(0, 0); 2]);
        let definition = HookDef::new::<AfterStep>(origin, TypeId::of::<T>(), 0, Shim::Point(|_, _| Ok(())));
        Hook::new(definition, None)
    }

    fn exclude(without: &str) -> (Vec<Option<&'static str>>, String) {
        let mut hooks = vec![hook::<Old>("plugin::clip", "0.1.0"), hook::<New>("plugin::clip", "0.2.0")];
        let mut mistakes = Vec::new();
        leave_out(&mut hooks, &[without.to_owned()], &mut mistakes);
        (hooks.iter().map(|hook| hook.definition.origin.version).collect(), mistakes.join("\n"))
    }

    #[test]
    fn versions_of_a_crate_are_distinguished() {
        assert_eq!(exclude("plugin@0.1.0::clip"), (vec![Some("0.2.0")], String::new()));
        assert_eq!(
            exclude("plugin::clip").1,
            r#"`.without("plugin::clip")` matches hooks of several versions of the crate: write `plugin@0.1.0::clip` or `plugin@0.2.0::clip`"#
        );
        let hooks = vec![hook::<Old>("plugin::clip", "0.1.0"), hook::<New>("plugin::clip", "0.2.0")];
        let table =
            crate::hook::table::Table::freeze(hooks, 0).unwrap_or_else(|_| unreachable!("no constraints"));
        let table = crate::HookTable::of(&table, &Default::default(), std::iter::empty());
        assert_eq!(table.at("after_step"), ["plugin@0.1.0::clip", "plugin@0.2.0::clip"]);
        let text = table.to_string();
        assert!(text.contains("From: plugin 0.1.0 (1 hook), plugin 0.2.0 (1 hook)"), "{text}");
    }

    #[test]
    fn an_ambiguous_name_excludes_no_hook() {
        // Otherwise, hooks that name the excluded ones would be reported, too.
        assert_eq!(exclude("plugin::clip").0, [Some("0.1.0"), Some("0.2.0")]);
    }

    /// Returns a discovered hook at this place.
    fn found(path: &'static str, binary: bool, file: &'static str, attribute: [(u32, u32); 2]) -> Hook<Toy> {
        let module = path.rsplit_once("::").unwrap().0;
        let origin = Origin::new(module, path, None, file, attribute).written(attribute[1].0 + 1, 4, "");
        let origin = if binary { origin.in_binary() } else { origin };
        let definition =
            HookDef::new::<AfterStep>(origin, TypeId::of::<Old>(), 0, Shim::Point(|_, _| Ok(())));
        Hook { source: Source::Discovery, ..Hook::new(definition, None) }
    }

    #[test]
    fn a_file_that_is_compiled_twice_is_reported_once() {
        const HERE: [(u32, u32); 2] = [(3, 1), (3, 1)];
        const LATER: [(u32, u32); 2] = [(9, 1), (9, 1)];
        // The second position is that of the attribute in a macro.
        const IN_MACRO: [(u32, u32); 2] = [(3, 1), (1, 1)];
        let report = |hooks: &[Hook<Toy>]| {
            let mut mistakes = Vec::new();
            compiled_twice(hooks, &mut mistakes);
            mistakes.join("\n")
        };
        let twice = [
            found("run::hooks::a", false, "src/hooks.rs", HERE),
            found("run::hooks::a", true, "src/hooks.rs", HERE),
            found("run::hooks::b", false, "src/hooks.rs", LATER),
            found("run::hooks::b", true, "src/hooks.rs", LATER),
        ];
        assert_eq!(
            report(&twice),
            "the file src/hooks.rs is compiled twice, as `run::hooks` of the library and as `run::hooks` of the binary, so its 2 \
             hooks would run twice: remove one of the two `mod hooks;`, and import the other module instead"
        );
        let in_one_crate = |attribute| {
            [found("run::a::x", true, "src/x.rs", attribute), found("run::b::x", true, "src/x.rs", attribute)]
        };
        assert!(report(&in_one_crate(HERE)).contains("so its hook `run::a::x` would run twice"));
        assert_eq!(report(&in_one_crate(IN_MACRO)), "", "a macro writes several hooks");
        let in_two_crates =
            [found("run::a::x", false, "src/x.rs", IN_MACRO), found("run::a::x", true, "src/x.rs", IN_MACRO)];
        assert!(report(&in_two_crates).contains("would run twice"));
        for different in [
            found("run::hooks::a", true, "src/others.rs", HERE),
            found("run::hooks::a", true, "src/hooks.rs", LATER),
            found("run::hooks::c", true, "src/hooks.rs", HERE),
        ] {
            assert_eq!(report(&[twice[0].clone(), different]), "");
        }
    }

    #[test]
    fn the_full_path_is_suggested_for_a_name_without_one() {
        for name in ["clip", "clpi"] {
            let message = exclude(name).1;
            assert!(message.ends_with("; did you mean `plugin::clip`?"), "{message}");
        }
    }
}
