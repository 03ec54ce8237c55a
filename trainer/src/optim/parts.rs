//! The optimizers of a run: one for the whole model, or one for each of its parts.

use std::collections::HashMap;

use tch::Tensor;

use super::{Optimizer, ParamGroup};
use crate::error::{Error, Result, suggestion};
use crate::libtorch::{self, Parameters};
use crate::vars::{Changes, Vars};

/// The optimizers of a run.
#[derive(Default)]
pub(crate) struct Optimizers {
    parts: Vec<Part>,
    /// The one that gradients are computed for, and that steps, now or last.
    current: usize,
    /// Mistakes that layers added in `setup` may still mend.
    deferred: Vec<String>,
}

/// A part of the model, and what updates it.
struct Part {
    /// What the names of its parameters begin with; empty for the whole.
    name: String,
    optimizer: Box<dyn Optimizer>,
    parameters: Parameters,
    /// The learning rates of its last step.
    used_lrs: Vec<f64>,
    /// How many steps it has taken.
    steps: u64,
}

impl Optimizers {
    /// The one for a part takes the place of the one before it, if there is one.
    pub(crate) fn insert(&mut self, part: String, optimizer: Box<dyn Optimizer>) {
        match self.parts.iter_mut().find(|known| known.name == part) {
            Some(known) => known.optimizer = optimizer,
            None => {
                let parameters = Parameters::default();
                self.parts.push(Part { name: part, optimizer, parameters, used_lrs: Vec::new(), steps: 0 });
            }
        }
    }

    /// Hands every optimizer its parameters. What is missing is no mistake yet if more of them may follow.
    pub(crate) fn bind(&mut self, vars: &Vars, may_grow: bool, mistakes: &mut Vec<String>) {
        let mut missing = Vec::new();
        if !self.parts.is_empty() && vars.parameters().next().is_none() {
            missing.push(no_parameter());
        } else {
            for part in &mut self.parts {
                let own = part.take(vars);
                if own.parameters().next().is_none() {
                    missing.push(nothing_for(&part.name, vars));
                    continue;
                }
                let Err(error) = part.optimizer.bind(&own) else { continue };
                let is_for_want = may_grow && part.optimizer.bind(&own.growing()).is_ok();
                if is_for_want { &mut missing } else { &mut *mistakes }.extend(mistakes_of(error));
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

    /// Hands the optimizers what `setup` has made of the parameters. Settings and state of those that are as before are kept.
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
            // A pattern that nothing matched may be the mistake of a part that has not changed.
            let is_open = !self.deferred.is_empty();
            for part in self.parts.iter_mut().filter(|part| is_open || changes.touches(&part.name)) {
                let own = part.take(vars);
                if own.parameters().next().is_none() {
                    mistakes.push(nothing_for(&part.name, vars));
                } else if let Err(error) = rebind(part.optimizer.as_mut(), &own, changes) {
                    mistakes.extend(mistakes_of(error));
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

    /// The mistake if two optimizers would update the same parameter.
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
                "`{}` would be updated twice, by {} and by {}: give each parameter to one",
                var.name,
                name(one),
                name(other)
            ))
        })
    }

    /// The one that steps now, or that stepped last; the first before any did.
    #[inline]
    pub(crate) fn current(&mut self) -> Result<&mut dyn Optimizer> {
        match self.parts.get_mut(self.current) {
            Some(part) => Ok(part.optimizer.as_mut()),
            None => Err(none()),
        }
    }

    /// The one of a part of the model.
    pub(crate) fn of(&mut self, part: &str) -> Result<&mut dyn Optimizer> {
        let index = self.index(part)?;
        Ok(self.parts[index].optimizer.as_mut())
    }

    /// What comes now is for this part of the model; for the whole of it if none is named. Gives its place.
    pub(crate) fn choose(&mut self, part: Option<&str>) -> Result<usize> {
        match part {
            Some(part) => self.current = self.index(part)?,
            None if self.parts.len() > 1 => {
                let parts = self.listed();
                return Err(Error::usage(format!(
                    "there is an optimizer for each of {parts}: `train_step` says for which one the gradients are, \
                     `step.backward_of(\"…\", …)`"
                )));
            }
            None => {}
        }
        Ok(self.current)
    }

    /// What came last was for this part.
    pub(crate) fn choose_if_there(&mut self, part: &str) {
        self.current = self.index(part).unwrap_or(self.current);
    }

    /// What comes now is for the part at this place.
    pub(crate) fn choose_nth(&mut self, nth: usize) {
        self.current = nth;
    }

    /// The backward pass: for the whole model, or for the part that was chosen.
    pub(crate) fn backward(&self, loss: &Tensor) -> Result<()> {
        match self.parts.get(self.current) {
            Some(part) if !part.name.is_empty() => libtorch::backward(loss, &part.parameters),
            _ => Ok(loss.f_backward()?),
        }
    }

    /// Updates the parameters.
    pub(crate) fn step(&mut self) -> Result<()> {
        let part = self.parts.get_mut(self.current).ok_or_else(none)?;
        part.used_lrs.clear();
        part.used_lrs.extend(part.optimizer.groups().iter().map(|group| group.lr));
        part.optimizer.step()?;
        part.steps = part.steps.saturating_add(1);
        Ok(())
    }

    /// The parts of the model that have one each, in the order in which they were given.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().map(|part| part.name.as_str())
    }

    /// The part whose optimizer steps now, or stepped last.
    #[inline]
    pub(crate) fn current_name(&self) -> &str {
        self.parts.get(self.current).map_or("", |part| &part.name)
    }

    /// How many steps the one of a part has taken.
    pub(crate) fn steps_of(&self, part: &str) -> Result<u64> {
        self.index(part).map(|index| self.parts[index].steps)
    }

    /// The learning rates of the last step, one for each parameter group.
    pub(crate) fn used_lrs(&self) -> &[f64] {
        self.parts.get(self.current).map_or(&[], |part| &part.used_lrs)
    }

    /// Multiplies the gradients.
    pub(crate) fn scale_grads(&self, factor: f64) -> Result<()> {
        libtorch::scale_grads(self.parameters()?, factor)
    }

    /// See [`Cx::clip_grad_norm`](crate::Cx::clip_grad_norm).
    pub(crate) fn clip_grad_norm(&self, max_norm: f64) -> Result<Tensor> {
        libtorch::clip_grad_norm(self.parameters()?, max_norm)
    }

    /// See [`Cx::clip_grad_value`](crate::Cx::clip_grad_value).
    pub(crate) fn clip_grad_value(&self, max_value: f64) -> Result<()> {
        libtorch::clip_grad_value(self.parameters()?, max_value)
    }

    /// What the current one updates.
    fn parameters(&self) -> Result<&Parameters> {
        self.parts.get(self.current).map(|part| &part.parameters).ok_or_else(none)
    }

    fn index(&self, part: &str) -> Result<usize> {
        self.parts.iter().position(|known| known.name == part).ok_or_else(|| {
            let there_is = match &self.parts[..] {
                [] => "there is none".to_owned(),
                [one] if one.name.is_empty() => "there is one for the whole model".to_owned(),
                _ => format!("there is one for {}", self.listed()),
            };
            Error::usage(format!(
                "no optimizer is for `{part}` alone, {there_is}: say `.optimizer_of(\"{part}\", AdamW::new(1e-3))`"
            ))
        })
    }

    fn listed(&self) -> String {
        self.parts.iter().map(|part| format!("`{}`", part.name)).collect::<Vec<_>>().join(", ")
    }

    /// Drops every gradient.
    pub(crate) fn zero_grad(&mut self) -> Result<()> {
        self.parts.iter_mut().try_for_each(|part| part.optimizer.zero_grad())
    }

    /// How many there are.
    pub(crate) fn count(&self) -> u64 {
        self.parts.len() as u64
    }

    /// All that there is to know of each, for a checkpoint: its part of the model, itself, the learning rates of its last step, and
    /// how many steps it has taken.
    pub(crate) fn parts(&self) -> impl Iterator<Item = (&str, &dyn Optimizer, &[f64], u64)> {
        self.parts
            .iter()
            .map(|part| (part.name.as_str(), part.optimizer.as_ref(), part.used_lrs.as_slice(), part.steps))
    }

    /// What they were when the checkpoint was written.
    ///
    /// # Errors
    ///
    /// Returns an error if there is not one learning rate for each parameter group, or one is not a number.
    pub(crate) fn restore(&mut self, part: &str, used_lrs: Vec<f64>, steps: u64) -> Result<()> {
        let Some(part) = self.parts.iter_mut().find(|known| known.name == part) else { return Ok(()) };
        let groups = part.optimizer.groups().len();
        if !used_lrs.is_empty() && used_lrs.len() != groups || used_lrs.iter().any(|lr| !lr.is_finite()) {
            return Err(Error::usage(format!(
                "the learning rates of the last step are {used_lrs:?}: expected one finite number for each of the \
                 {groups} parameter groups"
            )));
        }
        (part.used_lrs, part.steps) = (used_lrs, steps);
        Ok(())
    }

    /// Is there one?
    pub(crate) fn require(&self) -> Result<()> {
        if self.parts.is_empty() { Err(none()) } else { Ok(()) }
    }

    pub(crate) fn get(&self, part: Option<&str>) -> Option<&dyn Optimizer> {
        let found = match part {
            None => self.parts.get(self.current),
            Some(name) => self.parts.iter().find(|part| part.name == name),
        };
        found.map(|part| part.optimizer.as_ref())
    }
}

impl Part {
    /// Takes its parameters.
    fn take(&mut self, vars: &Vars) -> Vars {
        let own = vars.part(&self.name);
        self.parameters =
            own.parameters().map(|var| (var.name.clone(), var.tensor.shallow_clone())).collect();
        own
    }
}

/// Binds an optimizer anew, with the settings and the state that it had.
fn rebind(optimizer: &mut dyn Optimizer, own: &Vars, changes: &Changes) -> Result<()> {
    let key = |group: &ParamGroup| (group.pattern().map(str::to_owned), group.group);
    let settings = |group: &ParamGroup| -> Vec<(String, f64)> {
        group.settings().map(|(name, value)| (name.to_owned(), value)).collect()
    };
    let before: Vec<_> = optimizer.groups().iter().map(|group| (key(group), settings(group))).collect();
    let is_kept = |(name, _): &(String, Tensor)| {
        name.split_once('/').is_none_or(|(_, parameter)| !changes.is_new(parameter))
    };
    let state: Vec<_> = optimizer.state().into_iter().filter(is_kept).collect();
    optimizer.bind(own)?;
    for group in optimizer.groups_mut() {
        let own = key(group);
        let Some((_, settings)) = before.iter().find(|(key, _)| *key == own) else { continue };
        for (name, value) in settings {
            if group.get(name)?.to_bits() != value.to_bits() {
                group.set(name, *value)?;
            }
        }
    }
    let lacks = |state: &[(String, Tensor)], name: &str| !state.iter().any(|(known, _)| known == name);
    let fresh = optimizer.state();
    if state.iter().any(|(name, _)| lacks(&fresh, name)) {
        // A group that is frozen now may have state from before: this makes it, and copies only if all of it is there.
        let _ = optimizer.load_state(&state);
    }
    let state: HashMap<String, Tensor> = state.into_iter().collect();
    let merged: Vec<_> = (optimizer.state().into_iter())
        .map(|(name, fresh)| {
            let kept = state.get(&name).filter(|kept| kept.size() == fresh.size());
            let tensor = kept.map_or(fresh, Tensor::shallow_clone);
            (name, tensor)
        })
        .collect();
    optimizer.load_state(&merged)
}

fn mistakes_of(error: Error) -> Vec<String> {
    match error {
        Error::Build(several) => several.mistakes,
        error => vec![error.to_string()],
    }
}

fn no_parameter() -> String {
    let hint = "build the network on its root, `net(&vs.root())`";
    format!("the task's `VarStore` holds no parameter: {hint}")
}

/// The mistake of a part without a parameter.
fn nothing_for(part: &str, vars: &Vars) -> String {
    let tops = vars.parameters().filter_map(|var| var.name.split('.').next());
    let similar = suggestion(part, tops);
    format!("`.optimizer_of(\"{part}\", …)`: no parameter's name begins so{similar}")
}

fn none() -> Error {
    Error::usage("training needs an optimizer: give the builder one, `.optimizer(AdamW::new(1e-3))`")
}
