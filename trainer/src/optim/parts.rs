//! The optimizers of a run: one for the whole model, or one for each of its parts.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};
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
    gathered: Gathered,
    /// Whether that includes the current batch: a step may run more than one backward pass.
    has_current: bool,
}

/// What the gradients of a part are summed over.
///
/// They are the sum over batches of weight ÷ reference × the gradient of the batch's loss, and become the mean when they are
/// multiplied by reference ÷ sum. It lives as long as the gradients do.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
pub(crate) struct Gathered {
    /// The sum of the weights.
    pub(crate) sum: f64,
    /// The first weight; once the gradients are a mean, the sum that they are the mean over.
    pub(crate) reference: f64,
}

impl Gathered {
    /// The factor of the loss of a batch of this weight: exactly 1 for the first one.
    fn factor(self, weight: f64) -> f64 {
        if self.sum > 0.0 { weight / self.reference } else { 1.0 }
    }

    fn add(&mut self, weight: f64) {
        if self.sum == 0.0 {
            self.reference = weight;
        }
        self.sum += weight;
    }

    /// Whether a run can have these values.
    pub(crate) fn is_sound(self) -> bool {
        let Gathered { sum, reference } = self;
        sum.is_finite() && (sum == 0.0 || 0.0 < sum && 0.0 < reference && reference <= sum)
    }
}

impl Part {
    fn note_lrs(&mut self) {
        self.used_lrs.clear();
        self.used_lrs.extend(self.optimizer.groups().iter().map(|group| group.lr));
    }

    fn has_grads(&self) -> bool {
        self.parameters.tensors().iter().any(|parameter| parameter.grad().defined())
    }

    fn forget(&mut self) {
        (self.gathered, self.has_current) = (Gathered::default(), false);
    }
}

impl Optimizers {
    /// The one for a part takes the place of the one before it, if there is one.
    pub(crate) fn insert(&mut self, part: String, optimizer: Box<dyn Optimizer>) {
        match self.parts.iter_mut().find(|known| known.name == part) {
            Some(known) => known.optimizer = optimizer,
            None => {
                let parameters = Parameters::default();
                self.parts.push(Part {
                    name: part,
                    optimizer,
                    parameters,
                    used_lrs: Vec::new(),
                    steps: 0,
                    gathered: Gathered::default(),
                    has_current: false,
                });
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

    /// Updates the parameters, if there are gradients. Returns whether it did.
    pub(crate) fn step(&mut self) -> Result<bool> {
        self.forget_dropped();
        let part = self.parts.get_mut(self.current).ok_or_else(none)?;
        if part.gathered.sum == 0.0 {
            return Ok(false);
        }
        part.note_lrs();
        part.optimizer.step()?;
        part.steps = part.steps.saturating_add(1);
        Ok(true)
    }

    /// Counts a step that a hook took in the place of the current optimizer, or with it.
    pub(crate) fn count_step(&mut self) {
        if let Some(part) = self.parts.get_mut(self.current) {
            part.note_lrs();
            part.steps = part.steps.saturating_add(1);
        }
    }

    /// How many steps the current one has taken.
    pub(crate) fn current_steps(&self) -> u64 {
        self.parts.get(self.current).map_or(0, |part| part.steps)
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

    /// Begins the next batch.
    pub(crate) fn next_batch(&mut self) {
        self.parts.iter_mut().for_each(|part| part.has_current = false);
    }

    /// Begins anew what the current part has gathered if its gradients were dropped past the trainer.
    pub(crate) fn forget_dropped(&mut self) {
        if let Some(part) = self.parts.get_mut(self.current)
            && part.gathered.sum > 0.0
            && !part.has_grads()
        {
            part.forget();
        }
    }

    /// Begins anew what the current part has gathered.
    pub(crate) fn forget(&mut self) {
        if let Some(part) = self.parts.get_mut(self.current) {
            part.forget();
        }
    }

    /// Whether the current part has gathered any batch.
    pub(crate) fn has_gathered(&self) -> bool {
        self.parts.get(self.current).is_some_and(|part| part.gathered.sum > 0.0)
    }

    /// Whether a parameter of the current part has a gradient.
    pub(crate) fn has_grads(&self) -> bool {
        self.parts.get(self.current).is_some_and(Part::has_grads)
    }

    /// Whether the current part has gradients, other than zeros, though it has gathered no batch.
    pub(crate) fn has_uncounted_grads(&self) -> Result<bool> {
        if let Some(part) = self.parts.get(self.current)
            && part.gathered.sum == 0.0
        {
            for grad in part.parameters.tensors().iter().map(Tensor::grad).filter(Tensor::defined) {
                if grad.f_any()?.f_int64_value(&[])? != 0 {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// The factor of the loss of a batch of this weight.
    pub(crate) fn weight_factor(&self, weight: f64) -> f64 {
        self.parts.get(self.current).map_or(1.0, |part| part.gathered.factor(weight))
    }

    /// Counts the current batch among those that the current part has gradients of: once, however many backward passes.
    pub(crate) fn gather(&mut self, weight: f64) -> Result<()> {
        if let Some(part) = self.parts.get_mut(self.current)
            && !part.has_current
        {
            part.gathered.add(weight);
            part.has_current = true;
            if !part.gathered.sum.is_finite() {
                return Err(Error::usage(
                    "the weights of an accumulation window add up to infinity: return smaller ones from `Task::weight`",
                ));
            }
        }
        Ok(())
    }

    /// Turns the gradients into the mean over what was gathered.
    pub(crate) fn make_mean(&mut self) -> Result<()> {
        let part = self.parts.get_mut(self.current).ok_or_else(none)?;
        let Gathered { sum, reference } = part.gathered;
        if sum != reference {
            libtorch::scale_grads(&part.parameters, reference / sum)?;
            // If they are kept, they continue as a mean over all of it.
            part.gathered.reference = sum;
        }
        Ok(())
    }

    /// Drops the gradients of the current one.
    pub(crate) fn drop_grads(&mut self) -> Result<()> {
        let part = self.parts.get_mut(self.current).ok_or_else(none)?;
        part.forget();
        part.optimizer.zero_grad()
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
        self.parts.iter_mut().for_each(Part::forget);
        self.parts.iter_mut().try_for_each(|part| part.optimizer.zero_grad())
    }

    /// How many there are.
    pub(crate) fn count(&self) -> u64 {
        self.parts.len() as u64
    }

    /// All that there is to know of each, for a checkpoint: its part of the model, itself, the learning rates of its last step,
    /// how many steps it has taken, and what its gradients are the sum of.
    pub(crate) fn parts(&self) -> impl Iterator<Item = (&str, &dyn Optimizer, &[f64], u64, Gathered)> {
        self.parts.iter().map(|part| {
            (part.name.as_str(), part.optimizer.as_ref(), part.used_lrs.as_slice(), part.steps, part.gathered)
        })
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

    /// Restores what the gradients are summed over.
    pub(crate) fn restore_gathered(&mut self, part: &str, gathered: Gathered) {
        if let Some(part) = self.parts.iter_mut().find(|known| known.name == part) {
            part.gathered = gathered;
        }
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

#[cfg(test)]
mod tests {
    use super::Gathered;

    #[test]
    fn weights_that_no_run_can_have_are_not_sound() {
        let sound = [(0.0, 0.0), (32.0, 32.0), (101.0, 32.0), (2.5, 1e-300)];
        let unsound = [
            (-1.0, 1.0),
            (f64::NAN, 1.0),
            (f64::INFINITY, 1.0),
            (32.0, 0.0),
            (32.0, -1.0),
            (32.0, f64::NAN),
            (32.0, 33.0),
        ];
        for (expected, cases) in [(true, &sound[..]), (false, &unsound)] {
            for &(sum, reference) in cases {
                assert_eq!(Gathered { sum, reference }.is_sound(), expected, "{sum} {reference}");
            }
        }
    }
}
