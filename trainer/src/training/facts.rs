//! Collects the facts that decide the result of a run, so that a resume and the other ranks can
//! compare them.

use std::collections::{BTreeMap, HashMap};

use tch::Tensor;

use crate::lifecycle::at;
use crate::moment::Moment;
use crate::optim::Optimizers;
use crate::phase::PhaseSet;
use crate::run::Hook;
use crate::run::Instance;
use crate::run::Run;
use crate::run::RunHooks;
use crate::run::settings::{SettingKind, Settings};
use crate::values::facts::{Facts, HookFacts, SettingList};
use crate::values::hyperparameter::{Given, GivenBy};

/// What the facts of this run are compared with.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Audience {
    /// The facts of the interrupted run. Hooks that only observe may differ unless they list
    /// settings. Hooks that run only while a checkpoint is loaded may also differ, because a
    /// program uses them to change the resumed run.
    Resume,
    /// The facts of the other ranks. Hooks that run on rank 0 only may differ.
    Ranks,
    /// The lock of the program. Nothing may differ.
    Lock,
}

/// Records the facts that decide the result, before the first entry point changes any of them.
pub(super) fn note(run: &mut Run) {
    if run.checkpoints().facts.is_none() {
        run.checkpoints_mut().facts = Some(of(run, Audience::Resume));
    }
}

/// Returns the facts that decide the result.
pub(super) fn of(run: &Run, audience: Audience) -> Facts {
    let settings = run.settings().of(SettingKind::Result);
    let mut settings: BTreeMap<_, _> = settings.map(|(name, value)| (format!(".{name}(…)"), value)).collect();
    settings.extend(of_optimizers(run.optimizers(), audience));
    let compared = run.hyperparameters().iter().filter(|given| given.by != GivenBy::ChangeableSetting);
    settings.extend(compared.map(|given| (given.shown(), given.text())));
    let (hooks, order) = hook_facts(run.hooks(), audience);
    Facts { settings, hooks, order }
}

/// Returns the settings that a resumed run may change, under the names that a checkpoint uses for
/// them.
pub(super) fn changeable(
    settings: &Settings,
    hyperparameters: &[Given],
) -> impl Iterator<Item = (String, String)> {
    let given = hyperparameters.iter().filter(|given| given.by == GivenBy::ChangeableSetting);
    settings.of(SettingKind::Length).chain(given.map(|given| (given.shown(), given.text())))
}

fn hook_facts(
    hooks: &RunHooks,
    audience: Audience,
) -> (BTreeMap<String, HookFacts>, BTreeMap<String, Vec<String>>) {
    let on_load = [
        at::before_load_checkpoint::index(),
        at::load_checkpoint::index(),
        at::after_load_checkpoint::index(),
    ];
    let is_compared = |hook: &&Hook| match audience {
        Audience::Ranks => !hook.definition.main_only,
        Audience::Lock => true,
        Audience::Resume => {
            let is_of_load = on_load.contains(&(hook.definition.row)());
            let is_left_out =
                instance_of(hooks, hook).map_or(hook.definition.observes, Instance::is_left_out);
            !is_of_load && !is_left_out
        }
    };
    let rows: Vec<&Hook> = hooks.table.hooks().iter().filter(is_compared).collect();
    let names = names_of(&rows, &hooks.instances);
    let mut by_name = BTreeMap::<_, HookFacts>::new();
    let mut order = BTreeMap::<_, Vec<_>>::new();
    for (hook, name) in rows.into_iter().zip(names) {
        let origin = &hook.definition.origin;
        let moment = hook.definition.moment.path();
        let listed = origin.method.map_or_else(|| name.clone(), |method| format!("{name}::{method}"));
        order.entry(moment.clone()).or_default().push(listed);
        let facts = by_name.entry(name).or_insert_with(|| HookFacts {
            package: [origin.krate(), origin.version.unwrap_or_default()].map(str::to_owned),
            runs: Vec::new(),
            settings: instance_of(hooks, hook).map(Instance::settings).unwrap_or_default().into_values(),
        });
        facts.runs.push(moment + &condition(hook));
    }
    (by_name, order)
}

fn instance_of<'r>(hooks: &'r RunHooks, hook: &Hook) -> Option<&'r Instance> {
    hooks.instances.get(hook.slot? as usize)
}

/// Formats when a hook runs: ` (in train, every 2, of encoder.*)`, or nothing if it always runs.
fn condition(hook: &Hook) -> String {
    let definition = &hook.definition;
    let mut parts = Vec::new();
    if definition.only != PhaseSet::NONE {
        parts.push(format!("in {}", definition.only));
    }
    parts.extend(definition.every.map(|n| format!("every {n}")));
    parts.extend(definition.when.map(|path| format!("when {path}")));
    if !hook.modules.is_empty() {
        let modules: Vec<String> = hook.modules.iter().map(ToString::to_string).collect();
        parts.push(format!("of {}", modules.join(" ")));
    }
    if parts.is_empty() { String::new() } else { format!(" ({})", parts.join(", ")) }
}

/// Returns, for each row, the name of its function, closure or value. A name consists of the path,
/// the arguments of a generic type, the label, and a number if the name has already occurred.
fn names_of(rows: &[&Hook], instances: &[Instance]) -> Vec<String> {
    let base = |hook: &Hook| {
        let origin = &hook.definition.origin;
        if origin.module.is_empty() {
            return format!("{} at {}", origin.path, hook.definition.moment.path());
        }
        let instance = hook.slot.and_then(|slot| instances.get(slot as usize));
        let arguments = instance.and_then(|instance| instance.type_name.split_once('<'));
        let arguments = arguments.map_or_else(String::new, |(_, arguments)| format!("<{arguments}"));
        let label = hook.label.as_ref().map_or_else(String::new, |label| format!(" ({label})"));
        format!("{}{arguments}{label}", origin.bare_path())
    };
    let mut order: Vec<usize> = (0..rows.len()).collect();
    order.sort_by_key(|index| rows[*index].slot); // in the order in which the values were added
    let mut known: HashMap<String, Vec<(Option<u32>, usize)>> = HashMap::new();
    let mut names = vec![String::new(); rows.len()];
    for index in order {
        let hook = rows[index];
        let name = base(rows[index]);
        // A function has only one row, so its index identifies it.
        let id = (hook.slot, hook.slot.map_or(index, |_| 0));
        let ids = known.entry(name.clone()).or_default();
        let nth = ids.iter().position(|other| *other == id).unwrap_or(ids.len());
        if nth == ids.len() {
            ids.push(id);
        }
        names[index] = if nth == 0 { name } else { format!("{name} #{}", nth + 1) };
    }
    names
}

/// Returns the settings of the optimizer of each part and of its parameter groups.
fn of_optimizers(optimizers: &Optimizers, audience: Audience) -> BTreeMap<String, String> {
    let mut list = SettingList::new();
    for (part, optimizer, ..) in optimizers.parts() {
        let of = if part.is_empty() { "optimizer".to_owned() } else { format!("optimizer of {part}") };
        let groups = optimizer.groups();
        list = list.with_all(&of, optimizer.settings());
        for (nth, group) in groups.iter().enumerate() {
            let of = if groups.len() == 1 { of.clone() } else { format!("{of}.group {nth}") };
            let own = SettingList::new()
                .with("algorithm", format_args!("{}", group.algorithm()))
                .with_optional("pattern", group.pattern())
                .with("parameters", group.names().count());
            let own = match audience {
                Audience::Lock => own.with("elements", group.parameters().map(Tensor::numel).sum::<usize>()),
                Audience::Resume | Audience::Ranks => own,
            };
            let own = group.settings().fold(own, |own, (name, value)| own.with(name, value));
            list = list.with_all(&of, own);
        }
    }
    let mut values = list.into_values();
    if audience != Audience::Ranks {
        // The result is the same with and without `Sharded`.
        values.retain(|name, _| !name.ends_with(".sharded"));
    }
    values
}

#[cfg(all(test, feature = "dashboard", feature = "mlflow", feature = "system", feature = "wandb"))]
mod tests;
