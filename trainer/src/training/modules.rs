//! Reports patterns that match no module.

use crate::error::{Error, Result, suggestion_for_pattern};
use crate::hook::table::module_moments;
use crate::modules::{ModulePattern, all_names};
use crate::phase::Phase;
use crate::run::reports::Reports;
use crate::run::{Hook, Modules, RunHooks};

/// Reports each pattern that matches no existing module, unless the pattern is optional, and each
/// hook at all modules if there is no module.
pub(super) fn unmatched<'a>(hooks: impl Iterator<Item = &'a Hook>, mistakes: &mut Vec<String>) {
    let mut names = None;
    let of_modules = module_moments();
    for hook in hooks {
        // The built-in hooks report it themselves, with what they need the modules for.
        let is_own = hook.definition.origin.is_own();
        if !is_own && hook.modules.is_empty() && of_modules.contains(&(hook.definition.row)()) {
            let names = names.get_or_insert_with(all_names);
            if names.is_empty() {
                mistakes.push(format!(
                    "{} can never fire: `{}` is reached at named modules only, and no module has a name: add names with \
                     `.named(…)` (see `trainer::modules`), or exclude the hook with `.without(…)`",
                    hook.definition.origin.placed(),
                    hook.definition.moment.path()
                ));
            }
        }
        for pattern in hook.modules.iter().filter(|pattern| !pattern.optional) {
            let names = names.get_or_insert_with(all_names);
            if !names.iter().any(|name| pattern.matches(name)) {
                mistakes.push(message(hook, pattern, &names.iter().map(|name| &**name).collect::<Vec<_>>()));
            }
        }
    }
}

fn message(hook: &Hook, pattern: &ModulePattern, names: &[&str]) -> String {
    let placed = hook.definition.origin.placed();
    let text = &pattern.text;
    if text.is_empty() {
        return format!(
            "{placed} selects modules by an empty name or list: expected at least one name, or `Patterns::all()`"
        );
    }
    let help = if names.is_empty() {
        "no module has a name: add names with `.named(…)` (see `trainer::modules`)".to_owned()
    } else {
        let similar = suggestion_for_pattern(text, names.iter().copied());
        let similar = if similar.is_empty() { ":".to_owned() } else { format!("{similar} Otherwise") };
        format!(
            "no module has such a name{similar} name the module with `.named(…)`, or write `of = optional(\"{text}\")`"
        )
    };
    format!("{placed} has `of = \"{text}\"`, but {help}")
}

/// Returns an error for the first pattern that matches no module. Called after `setup`, because
/// hooks may add layers there.
pub(super) fn check_patterns(hooks: &RunHooks) -> Result<()> {
    let mut mistakes = Vec::new();
    unmatched(hooks.table.hooks().iter(), &mut mistakes);
    mistakes.into_iter().next().map_or(Ok(()), |mistake| Err(Error::usage(mistake)))
}

/// At the end of a pass over data, warns about each pattern that is not optional and matches no
/// module that was called.
pub(super) fn warn_of_uncalled(phase: Phase, hooks: &RunHooks, modules: &Modules, reports: &Reports) {
    if !hooks.table.is_watching(phase) {
        return;
    }
    for hook in hooks.table.module_hooks(phase) {
        if hook.modules.is_empty() && modules.names().next().is_none() {
            reports.warn(format!(
                "{} is at all named modules, but the forward pass called none: modules are observed within the operations \
                 `pred` and `loss`, on the thread that runs them",
                hook.definition.origin.placed()
            ));
        }
        for pattern in hook.modules.iter().filter(|pattern| !pattern.optional) {
            if modules.names().any(|name| pattern.matches(name)) {
                continue;
            }
            let placed = hook.definition.origin.placed();
            let warning = format!(
                "{placed} has `of = \"{}\"`, but the forward pass called no module with such a name: modules are \
                 observed within the operations `pred` and `loss`, on the thread that runs them",
                pattern.text
            );
            reports.warn(warning);
        }
    }
}
