//! Reports patterns that match no module, and hooks at modules that cannot run on the device.

use std::sync::Arc;

use tch::Device;

use crate::error::{Error, Result, suggestion_for_pattern};
use crate::hook::table::{module_moments, moments_in_the_pass};
use crate::lifecycle::at;
use crate::model::vars::Vars;
use crate::modules::{ModulePattern, all_names};
use crate::moment::{Moment, MomentInfo};
use crate::phase::Phase;
use crate::run::dispatch::{needs_the_cpu, needs_whole_gradients};
use crate::run::reports::Reports;
use crate::run::{Hook, Modules, RunHooks};

/// Reports each pattern that matches no existing module, unless the pattern is optional, and each
/// hook at all modules if there is no module. Also reports each pattern, and each hook at all
/// modules, that waits for the gradients of modules without parameters.
pub(super) fn unmatched<'a>(hooks: impl Iterator<Item = &'a Hook>, vars: &Vars, mistakes: &mut Vec<String>) {
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
        let awaits_gradients = !is_own && (hook.definition.row)() == at::after_module_grads::index();
        let has_parameters = |name: &Arc<str>| vars.in_part(name).any(|var| var.is_parameter);
        for pattern in hook.modules.iter().filter(|pattern| !pattern.optional) {
            let names = names.get_or_insert_with(all_names);
            let mut matched = names.iter().filter(|name| pattern.matches(name)).peekable();
            if matched.peek().is_none() {
                mistakes.push(message(hook, pattern, &names.iter().map(|name| &**name).collect::<Vec<_>>()));
            } else if awaits_gradients && !matched.any(has_parameters) {
                let placed = hook.definition.origin.placed();
                mistakes.push(format!(
                    "{placed} has `of = \"{}\"`, but {NO_PARAMETERS}, or write `of = optional(\"{0}\")`",
                    pattern.text
                ));
            }
        }
        if awaits_gradients && hook.modules.is_empty() {
            let names = names.get_or_insert_with(all_names);
            if !names.is_empty() && !names.iter().any(has_parameters) {
                let placed = hook.definition.origin.placed();
                mistakes.push(format!(
                    "{placed} can never fire: {NO_PARAMETERS}, or exclude the hook with `.without(…)`"
                ));
            }
        }
    }
}

/// What a message says about modules that never have gradients.
const NO_PARAMETERS: &str = "no parameter has a name that begins with that of such a module: name a module with the path of its \
                             variables";

/// Reports hooks that fire while the backward pass runs, if it is not on the CPU, or if an
/// optimizer divides the gradients meanwhile.
pub(super) fn in_the_pass<'a>(
    device: Device,
    are_divided: bool,
    hooks: impl Iterator<Item = &'a Hook>,
    mistakes: &mut Vec<String>,
) {
    let why: &dyn Fn(&MomentInfo) -> String = match device {
        Device::Cpu if are_divided => &needs_whole_gradients,
        Device::Cpu => return,
        device => &move |moment| needs_the_cpu(moment, device),
    };
    let in_pass = hooks.filter(|hook| moments_in_the_pass().contains(&(hook.definition.row)()));
    mistakes.extend(in_pass.map(|Hook { definition, .. }| {
        format!("{}: {}", definition.origin.placed(), why(definition.moment))
    }));
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
pub(super) fn check_patterns(hooks: &RunHooks, vars: &Vars) -> Result<()> {
    let mut mistakes = Vec::new();
    unmatched(hooks.table.hooks().iter(), vars, &mut mistakes);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lifecycle::{AfterBackward, AfterModuleBackward, AfterModuleGrads, BeforeModuleBackward};
    use crate::run::HookDef;

    fn hook<P: crate::moment::AtPoint>(name: &str) -> Hook {
        let options = crate::run::dispatch::HookOptions::named(name);
        let place = std::panic::Location::caller();
        let shim: crate::hook::definition::PointShim<crate::run::Run> = |_, _| Ok(());
        let definition: HookDef = options.define::<P, ()>(shim, true, place, &mut Vec::new());
        Hook::new(definition, None)
    }

    #[test]
    fn hooks_inside_of_the_backward_pass_are_refused_unless_it_is_on_the_cpu() {
        let hooks = [
            hook::<BeforeModuleBackward>("before"),
            hook::<AfterModuleGrads>("grads"),
            hook::<AfterModuleBackward>("after"),
            hook::<AfterBackward>("end"),
        ];
        let refused = |device, are_divided| {
            let mut mistakes = Vec::new();
            in_the_pass(device, are_divided, hooks.iter(), &mut mistakes);
            mistakes
        };
        assert!(refused(Device::Cpu, false).is_empty());
        let divided = refused(Device::Cpu, true);
        let instead = ["`after_module_backward`", "`after_backward`"];
        assert_eq!(divided.len(), instead.len());
        for (mistake, instead) in divided.iter().zip(instead) {
            let end = format!("use {instead}, or remove `.gradients(true)` from the optimizer");
            assert!(mistake.ends_with(&end), "{mistake}");
        }
        for device in [Device::Cuda(1), Device::Mps] {
            let mistakes = refused(device, false);
            let [before, grads] = &mistakes[..] else { panic!("{mistakes:?}") };
            assert!(before.contains("`before`") && before.contains(&format!("on {device:?}")), "{before}");
            assert!(before.ends_with("use `after_module_backward`, or train on the CPU"), "{before}");
            assert!(
                grads.contains("`grads`") && grads.ends_with("use `after_backward`, or train on the CPU"),
                "{grads}"
            );
        }
        assert_eq!(BeforeModuleBackward::INFO.path(), "before_module_backward");
    }
}
