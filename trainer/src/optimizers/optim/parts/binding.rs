//! Binding the optimizers to the parameters of their parts.

use std::collections::HashMap;

use tch::Tensor;

use super::{NamedOptimizer, Optimizers};
use crate::error::{Error, Result, suggestion_among};
use crate::model::vars::{Changes, Vars};
use crate::optim::{Optimizer, ParamGroup};

impl Optimizers {
    /// Binds every optimizer to its parameters, and adds all mistakes to `mistakes`. If more
    /// parameters may be added later, mistakes about missing parameters are deferred instead.
    pub(crate) fn bind(&mut self, vars: &Vars, may_grow: bool, mistakes: &mut Vec<String>) {
        let mut missing = Vec::new();
        if !self.parts.is_empty() && vars.parameters().next().is_none() {
            missing.push(no_parameter());
        } else {
            for part in &mut self.parts {
                let own = part.collect_parameters(vars);
                if own.parameters().next().is_none() {
                    missing.push(nothing_for(&part.name, vars));
                    continue;
                }
                let Err(error) = part.optimizer.bind(&own) else { continue };
                let is_deferrable = may_grow && part.optimizer.bind(&own.growing()).is_ok();
                if is_deferrable { &mut missing } else { &mut *mistakes }.extend(mistakes_in(error));
            }
        }
        mistakes.extend(self.held_twice(vars));
        if !self.parts.is_empty() {
            mistakes.extend(vars.sharing_memory());
        }
        if may_grow {
            self.deferred = missing;
        } else {
            mistakes.extend(missing);
        }
    }

    /// Binds the optimizers again if `setup` changed their parameters or if mistakes were deferred.
    /// Keeps the settings and the state of unchanged parameters.
    ///
    /// # Errors
    ///
    /// Returns an error that lists all mistakes, including the deferred ones that remain.
    pub(crate) fn adopt(&mut self, vars: &Vars, changes: &Changes) -> Result<()> {
        if changes.is_empty() && self.deferred.is_empty() {
            return Ok(());
        }
        let mut mistakes = Vec::new();
        if changes.is_empty() {
            mistakes.clone_from(&self.deferred);
        } else if !self.parts.is_empty() && vars.parameters().next().is_none() {
            mistakes.push(no_parameter());
        } else {
            // A part without changes may have a deferred mistake: a pattern that matched nothing.
            let is_open = !self.deferred.is_empty();
            for part in self.parts.iter_mut().filter(|part| is_open || changes.touches(&part.name)) {
                let own = part.collect_parameters(vars);
                if own.parameters().next().is_none() {
                    mistakes.push(nothing_for(&part.name, vars));
                } else if let Err(error) = rebind(part.optimizer.as_mut(), &own, changes) {
                    mistakes.extend(mistakes_in(error));
                }
            }
            mistakes.extend(self.held_twice(vars));
            mistakes.extend(vars.sharing_memory());
        }
        if mistakes.is_empty() {
            self.deferred.clear();
            return Ok(());
        }
        Err(Error::usage(mistakes.join("; ")))
    }

    /// Describes the first parameter that two optimizers would update, if there is one.
    fn held_twice(&self, vars: &Vars) -> Option<String> {
        let names: Vec<&str> = self.parts.iter().map(|part| part.name.as_str()).collect();
        vars.parameters().find_map(|var| {
            let holders: Vec<_> = names.iter().filter(|part| var.is_in(part)).collect();
            let [one, other, ..] = holders[..] else { return None };
            let name = |part: &str| match part {
                "" => "`.optimizer(…)`".to_owned(),
                part => format!("`.optimizer_of(\"{part}\", …)`"),
            };
            Some(format!(
                "`{}` would be updated twice, by {} and by {}: assign each parameter to one optimizer",
                var.name,
                name(one),
                name(other)
            ))
        })
    }
}

impl NamedOptimizer {
    /// Updates the list of parameters, and returns the variables of the part.
    fn collect_parameters(&mut self, vars: &Vars) -> Vars {
        let own = vars.part(&self.name);
        self.parameters =
            own.parameters().map(|var| (var.name.clone(), var.tensor.shallow_clone())).collect();
        own
    }
}

/// Binds an optimizer again, and restores its settings and the state of unchanged parameters.
fn rebind(optimizer: &mut dyn Optimizer, own: &Vars, changes: &Changes) -> Result<()> {
    let key = |group: &ParamGroup| (group.pattern().map(str::to_owned), group.group);
    let before = optimizer.groups().iter().map(|group| {
        let settings = group.settings().map(|(name, value)| (name.to_owned(), value));
        (key(group), settings.collect::<Vec<_>>())
    });
    let before: Vec<_> = before.collect();
    let mut state = optimizer.state();
    state.retain(|(name, _)| name.split_once('/').is_none_or(|(_, parameter)| !changes.is_new(parameter)));
    optimizer.bind(own)?;
    for group in optimizer.groups_mut() {
        let own = key(group);
        let Some((_, settings)) = before.iter().find(|(key, _)| *key == own) else { continue };
        let trains = group.parameters().any(Tensor::requires_grad);
        for (name, value) in settings {
            if name == "frozen" && *value != 0.0 && trains {
                continue; // a new parameter is trained alongside the frozen ones
            }
            if group.get(name)?.to_bits() != value.to_bits() {
                group.set(name, *value)?;
            }
        }
    }
    let fresh = optimizer.state();
    if state.iter().any(|(name, _)| fresh.iter().all(|(known, _)| known != name)) {
        // A group that is frozen now may have had state before it was frozen. This call creates
        // that state, even if the call then fails because other state is missing. The call below
        // copies everything.
        let _ = optimizer.load_state(&state);
    }
    let state: HashMap<String, Tensor> = state.into_iter().collect();
    let merged: Vec<_> = (optimizer.state().into_iter())
        .map(|(name, fresh)| {
            let kept = state.get(&name).filter(|kept| kept.size() == fresh.size());
            (name, kept.map_or(fresh, Tensor::shallow_clone))
        })
        .collect();
    optimizer.load_state(&merged)
}

/// Returns the mistakes that an error lists, or the error itself as the only mistake.
fn mistakes_in(error: Error) -> Vec<String> {
    match error {
        Error::Build(several) => several.mistakes,
        error => vec![error.to_string()],
    }
}

/// Builds the error message for a task without parameters.
fn no_parameter() -> String {
    let hint = "build the network on its root, `net(&vs.root())`";
    format!("the task's `VarStore` contains no parameters: {hint}")
}

/// Builds the error message for a part without parameters.
fn nothing_for(part: &str, vars: &Vars) -> String {
    let similar = suggestion_among(part, vars.parameters().filter_map(|var| var.name.split('.').next()));
    format!("`.optimizer_of(\"{part}\", …)`: no parameter name starts with this{similar}")
}
