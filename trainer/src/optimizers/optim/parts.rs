//! The optimizers of a run: one for the whole model, or one for each of several parts.

mod accumulated;
mod binding;

use tch::Tensor;

use super::{DividedGradients, Optimizer, PassPlan};
use crate::error::{Error, Result};
use crate::libtorch::{self, Parameters};
pub(crate) use accumulated::Accumulated;

/// The optimizers of a run. One of them is *current*: most methods act on it.
#[derive(Default)]
pub(crate) struct Optimizers {
    parts: Vec<NamedOptimizer>,
    /// The index of the optimizer that was selected most recently.
    current: usize,
    /// Mistakes that are not reported yet, because layers added in `setup` may resolve them.
    deferred: Vec<String>,
}

/// The optimizer of one part of the model.
struct NamedOptimizer {
    /// The name of the part, a prefix of its parameters' names; empty for the whole model.
    name: String,
    optimizer: Box<dyn Optimizer>,
    parameters: Parameters,
    /// The learning rates of the last step, one per parameter group.
    used_lrs: Vec<f64>,
    /// The number of steps taken.
    steps: u64,
    /// The number of steps taken before the current batch.
    steps_before: u64,
    accumulated: Accumulated,
    /// Whether `accumulated` includes the current batch: one batch may have several backward
    /// passes.
    has_current: bool,
}

impl NamedOptimizer {
    /// Records the learning rates of the step being taken.
    fn record_lrs(&mut self) {
        self.used_lrs.clear();
        self.used_lrs.extend(self.optimizer.groups().iter().map(|group| group.lr));
    }

    /// Returns whether any parameter has a gradient, on this rank or, if the gradients are divided,
    /// on any rank.
    fn has_grads(&self) -> bool {
        if self.optimizer.divided_gradients().is_some_and(DividedGradients::are_divided) {
            return true;
        }
        self.parameters.tensors().iter().any(|parameter| parameter.grad().defined())
    }

    /// Resets the accumulated batch weights.
    fn reset_accumulated(&mut self) {
        self.accumulated = Accumulated::default();
        self.has_current = false;
    }
}

impl Optimizers {
    /// Adds the optimizer of a part, replacing the part's previous optimizer, if any.
    pub(crate) fn insert(&mut self, part: String, optimizer: Box<dyn Optimizer>) {
        match self.parts.iter_mut().find(|known| known.name == part) {
            Some(known) => known.optimizer = optimizer,
            None => {
                let parameters = Parameters::default();
                self.parts.push(NamedOptimizer {
                    name: part,
                    optimizer,
                    parameters,
                    used_lrs: Vec::new(),
                    steps: 0,
                    steps_before: 0,
                    accumulated: Accumulated::default(),
                    has_current: false,
                });
            }
        }
    }

    /// Returns the current optimizer, which is initially the first one.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no optimizer.
    #[inline]
    pub(crate) fn current_mut(&mut self) -> Result<&mut dyn Optimizer> {
        let part = self.parts.get_mut(self.current).ok_or_else(no_optimizer)?;
        Ok(part.optimizer.as_mut())
    }

    /// Returns the optimizer of a part of the model.
    ///
    /// # Errors
    ///
    /// Returns an error if no optimizer is registered for the part.
    pub(crate) fn for_part_mut(&mut self, part: &str) -> Result<&mut dyn Optimizer> {
        let index = self.index(part)?;
        Ok(self.parts[index].optimizer.as_mut())
    }

    /// Returns the current optimizer.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no optimizer.
    pub(crate) fn current(&self) -> Result<&dyn Optimizer> {
        let part = self.parts.get(self.current).ok_or_else(no_optimizer)?;
        Ok(part.optimizer.as_ref())
    }

    /// Returns the optimizer of a part of the model.
    ///
    /// # Errors
    ///
    /// Returns an error if no optimizer is registered for the part.
    pub(crate) fn for_part(&self, part: &str) -> Result<&dyn Optimizer> {
        Ok(self.parts[self.index(part)?].optimizer.as_ref())
    }

    /// Selects the optimizer of this part of the model, or the only optimizer if no part is named.
    /// Returns its index.
    ///
    /// # Errors
    ///
    /// Returns an error if the part has no optimizer, or if no part is named and there are several
    /// optimizers.
    pub(crate) fn select(&mut self, part: Option<&str>) -> Result<usize> {
        match part {
            Some(part) => self.current = self.index(part)?,
            None if self.parts.len() > 1 => {
                let parts = self.listed();
                return Err(Error::usage(format!(
                    "the trainer has several optimizers, for {parts}: select one in `train_step`, \
                     `step.backward_of(\"…\", …)`"
                )));
            }
            None => {}
        }
        Ok(self.current)
    }

    /// Selects the optimizer of this part of the model if there is one.
    pub(crate) fn select_if_present(&mut self, part: &str) {
        self.current = self.index(part).unwrap_or(self.current);
    }

    /// Selects the optimizer with this index, which [`select`](Optimizers::select) returned.
    pub(crate) fn select_index(&mut self, index: usize) {
        self.current = index;
    }

    /// Runs the backward pass. Computes only the gradients of the current part's parameters, unless
    /// the part is the whole model. Divides the gradients if the optimizer does so.
    pub(crate) fn backward(&self, loss: &Tensor, pass: PassPlan) -> Result<()> {
        let mut run = || libtorch::backward(loss, self.current_parameters());
        match self.divided() {
            Some(divided) => divided.backward(loss, pass, &mut run),
            None => run(),
        }
    }

    /// Returns the parameters whose gradients a backward pass computes; `None` if the current part
    /// is the whole model.
    pub(crate) fn current_parameters(&self) -> Option<&Parameters> {
        self.parts.get(self.current).filter(|part| !part.name.is_empty()).map(|part| &part.parameters)
    }

    /// Returns where the gradients of the current part are, if its optimizer divides them among the
    /// ranks. Everything that reads gradients asks this.
    pub(crate) fn divided(&self) -> Option<&DividedGradients> {
        self.parts.get(self.current)?.optimizer.divided_gradients()
    }

    /// Whether any of them divides gradients among the ranks.
    pub(crate) fn divide(&self) -> bool {
        self.parts.iter().any(|part| part.optimizer.divided_gradients().is_some())
    }

    /// Returns whether the gradient of a variable, if it exists, is a sum over all ranks that only
    /// the owner of the variable has.
    pub(crate) fn has_divided_sum(&self, var: &str) -> bool {
        let mut divided = self.parts.iter().filter_map(|part| part.optimizer.divided_gradients());
        divided.any(|divided| divided.has_sum_of(var))
    }

    /// Returns the rank that has the gradient of a variable, if only another rank has it.
    pub(crate) fn owner_elsewhere(&self, var: &str) -> Option<u32> {
        let divided = self.parts.iter().filter_map(|part| part.optimizer.divided_gradients());
        let mut divided = divided.filter(|divided| divided.are_divided() && !divided.is_own(var));
        divided.find_map(|divided| divided.owner_of(var))
    }

    /// Divides the gradients of the current part that no backward pass has divided yet, if its
    /// optimizer divides them.
    pub(crate) fn complete_gradients(&self) -> Result<()> {
        self.divided().map_or(Ok(()), DividedGradients::complete)
    }

    /// Takes a step of the current optimizer if its part has accumulated any batch. Returns whether
    /// a step was taken.
    pub(crate) fn step(&mut self) -> Result<bool> {
        self.reset_if_dropped();
        let part = self.parts.get_mut(self.current).ok_or_else(no_optimizer)?;
        if !part.accumulated.has_batches() {
            return Ok(false);
        }
        part.record_lrs();
        if !part.accumulated.is_weightless {
            part.optimizer.step()?;
        }
        part.steps = part.steps.saturating_add(1);
        Ok(true)
    }

    /// Counts a step that a hook took, with the current optimizer or instead of it.
    pub(crate) fn count_step(&mut self) {
        if let Some(part) = self.parts.get_mut(self.current) {
            part.record_lrs();
            part.steps = part.steps.saturating_add(1);
        }
    }

    /// Returns the number of steps that the current optimizer has taken.
    pub(crate) fn current_steps(&self) -> u64 {
        self.parts.get(self.current).map_or(0, |part| part.steps)
    }

    /// Returns the names of the parts that have an optimizer, in the order in which the optimizers
    /// were added.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().map(|part| part.name.as_str())
    }

    /// Returns the name of the current optimizer's part.
    #[inline]
    pub(crate) fn current_name(&self) -> &str {
        self.parts.get(self.current).map_or("", |part| &part.name)
    }

    /// Returns the number of steps that the optimizer of a part has taken.
    ///
    /// # Errors
    ///
    /// Returns an error if no optimizer is registered for the part.
    pub(crate) fn steps_of(&self, part: &str) -> Result<u64> {
        self.index(part).map(|index| self.parts[index].steps)
    }

    /// Returns the learning rates of the current optimizer's last step, one per parameter group.
    pub(crate) fn used_lrs(&self) -> &[f64] {
        self.parts.get(self.current).map_or(&[], |part| &part.used_lrs)
    }

    /// Marks the start of the next batch, which no part has accumulated yet.
    pub(crate) fn next_batch(&mut self) {
        for part in &mut self.parts {
            part.has_current = false;
            part.steps_before = part.steps;
        }
    }

    /// Returns the number of steps that the current optimizer has taken in the current batch.
    pub(crate) fn steps_in_batch(&self) -> u64 {
        self.parts.get(self.current).map_or(0, |part| part.steps - part.steps_before)
    }

    /// Resets the accumulated batch weights of the current part if its gradients were dropped
    /// without the trainer's knowledge.
    pub(crate) fn reset_if_dropped(&mut self) {
        if let Some(part) = self.parts.get_mut(self.current)
            && part.accumulated.has_batches()
            && !part.has_grads()
        {
            part.reset_accumulated();
        }
    }

    /// Resets the accumulated batch weights of the current part.
    pub(crate) fn reset_accumulated(&mut self) {
        if let Some(part) = self.parts.get_mut(self.current) {
            part.reset_accumulated();
        }
    }

    /// Returns whether the current part has accumulated any batch.
    pub(crate) fn has_accumulated(&self) -> bool {
        self.parts.get(self.current).is_some_and(|part| part.accumulated.has_batches())
    }

    /// Returns the sum of the batch weights that all parts have accumulated.
    pub(crate) fn accumulated(&self) -> f64 {
        self.parts.iter().map(|part| part.accumulated.sum).sum()
    }

    /// Returns whether the batch weights that the current part has accumulated add up to `weight`.
    /// If that is the weight of the current batch, the part has accumulated no other batch.
    pub(crate) fn has_accumulated_only(&self, weight: f64) -> bool {
        self.parts.get(self.current).is_some_and(|part| part.accumulated.sum == weight)
    }

    /// Returns whether a parameter of the current part has a gradient.
    pub(crate) fn has_grads(&self) -> bool {
        self.parts.get(self.current).is_some_and(NamedOptimizer::has_grads)
    }

    /// Returns whether the current part has non-zero gradients although it has accumulated no
    /// batch.
    pub(crate) fn has_uncounted_grads(&self) -> Result<bool> {
        if let Some(part) = self.parts.get(self.current)
            && part.accumulated.sum == 0.0
        {
            for grad in part.parameters.tensors().iter().map(Tensor::grad).filter(Tensor::defined) {
                if grad.f_any()?.f_int64_value(&[])? != 0 {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Returns the factor by which the loss of a batch of this weight is multiplied.
    pub(crate) fn weight_factor(&self, weight: f64) -> f64 {
        self.parts.get(self.current).map_or(1.0, |part| part.accumulated.factor(weight))
    }

    /// Adds the weight of the current batch to the current part, once per batch even if it has
    /// several backward passes.
    ///
    /// # Errors
    ///
    /// Returns an error if the sum of the weights is infinite.
    pub(crate) fn accumulate(&mut self, weight: f64) -> Result<()> {
        if let Some(part) = self.parts.get_mut(self.current)
            && !part.has_current
        {
            part.accumulated.add(weight);
            part.has_current = true;
            if !part.accumulated.sum.is_finite() {
                return Err(Error::usage(
                    "the weights of an accumulation window add up to infinity: return smaller ones from `Task::weight`",
                ));
            }
        }
        Ok(())
    }

    /// Scales the accumulated gradients of the current part to the weighted mean over the batches.
    pub(crate) fn make_mean(&mut self) -> Result<()> {
        let part = self.parts.get_mut(self.current).ok_or_else(no_optimizer)?;
        let Accumulated { sum, reference, .. } = part.accumulated;
        if sum != reference {
            libtorch::scale_grads(&part.parameters, reference / sum)?;
            // If the gradients are kept after the step, they remain this mean.
            part.accumulated.reference = sum;
        }
        Ok(())
    }

    /// Drops the gradients of the current part.
    pub(crate) fn drop_grads(&mut self) -> Result<()> {
        let part = self.parts.get_mut(self.current).ok_or_else(no_optimizer)?;
        part.reset_accumulated();
        part.optimizer.zero_grad()
    }

    /// Drops the gradients of the current part, without resetting its accumulated batch weights.
    pub(crate) fn zero_current(&mut self) -> Result<()> {
        self.current_mut()?.zero_grad()
    }

    /// Implements [`Cx::clip_grad_norm`](crate::Cx::clip_grad_norm).
    pub(crate) fn clip_grad_norm(&self, max_norm: f64) -> Result<Tensor> {
        let Some(divided) = self.divided() else {
            return libtorch::clip_grad_norm(self.parameters()?, max_norm, None);
        };
        let parameters = self.parameters()?;
        let grads = parameters.tensors().iter().map(Tensor::grad).filter(Tensor::defined);
        let norm = divided.norm(&grads.collect::<Vec<_>>())?;
        libtorch::clip_grad_norm(parameters, max_norm, Some(&norm))
    }

    /// Implements [`Cx::clip_grad_value`](crate::Cx::clip_grad_value).
    pub(crate) fn clip_grad_value(&self, max_value: f64) -> Result<()> {
        libtorch::clip_grad_value(self.parameters()?, max_value)
    }

    /// Implements [`Cx::unscale_grads`](crate::Cx::unscale_grads).
    pub(crate) fn unscale_grads(&self, factor: f64) -> Result<bool> {
        let are_finite = libtorch::unscale_grads(self.parameters()?, factor)?;
        let Some(divided) = self.divided() else { return Ok(are_finite) };
        divided.all("whether the divided gradients are finite", are_finite)
    }

    /// Returns the parameters of the current part.
    fn parameters(&self) -> Result<&Parameters> {
        self.parts.get(self.current).map(|part| &part.parameters).ok_or_else(no_optimizer)
    }

    /// Returns the index of a part.
    fn index(&self, part: &str) -> Result<usize> {
        self.parts.iter().position(|known| known.name == part).ok_or_else(|| {
            let (registered, verb) = match &self.parts[..] {
                [] => ("nor for any other".to_owned(), "add"),
                [one] if one.name.is_empty() => {
                    ("only for the whole model".to_owned(), "replace `.optimizer(…)` with")
                }
                _ => (format!("only for {}", self.listed()), "add"),
            };
            Error::usage(format!(
                "no optimizer is registered for part `{part}`, {registered}: {verb} \
                 `.optimizer_of(\"{part}\", AdamW::new(1e-3))`"
            ))
        })
    }

    /// Returns the names of the parts, for messages.
    fn listed(&self) -> String {
        self.parts.iter().map(|part| format!("`{}`", part.name)).collect::<Vec<_>>().join(", ")
    }

    /// Drops the gradients of all parts.
    pub(crate) fn zero_grad(&mut self) -> Result<()> {
        self.parts.iter_mut().for_each(NamedOptimizer::reset_accumulated);
        self.parts.iter_mut().try_for_each(|part| part.optimizer.zero_grad())
    }

    /// Returns what a checkpoint saves for each optimizer: the name of its part, the optimizer, the
    /// learning rates of its last step, its step count, and the accumulated batch weights.
    pub(crate) fn parts(&self) -> impl Iterator<Item = (&str, &dyn Optimizer, &[f64], u64, Accumulated)> {
        self.parts.iter().map(|part| {
            (
                part.name.as_str(),
                part.optimizer.as_ref(),
                part.used_lrs.as_slice(),
                part.steps,
                part.accumulated,
            )
        })
    }

    /// Restores a part's step count, its accumulated batch weights, and the learning rates of its
    /// last step, which are empty before the first step. Does nothing if the part has no optimizer.
    pub(crate) fn restore(&mut self, part: &str, used_lrs: Vec<f64>, steps: u64, accumulated: Accumulated) {
        if let Some(part) = self.parts.iter_mut().find(|known| known.name == part) {
            part.used_lrs = used_lrs;
            part.steps = steps;
            part.accumulated = accumulated;
            part.has_current = false;
        }
    }

    /// Returns an error if there is no optimizer.
    pub(crate) fn require(&self) -> Result<()> {
        if self.parts.is_empty() { Err(no_optimizer()) } else { Ok(()) }
    }
}

/// Returns the error for a run that needs an optimizer and has none.
fn no_optimizer() -> Error {
    Error::usage("training needs an optimizer: add one to the builder, `.optimizer(AdamW::new(1e-3))`")
}
