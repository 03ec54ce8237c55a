//! The state of each optimizer.

use std::borrow::Cow;
use std::collections::BTreeMap;

use tch::Tensor;

use super::part::{Part, Scope, is_count, require, value};
use crate::checkpoint::files::OPTIMIZER;
use crate::checkpoint::progress::FitState;
use crate::checkpoint::{NamedTensors, Saved};
use crate::error::{Error, Result, shortened};
use crate::libtorch;
use crate::optim::{Accumulated, Optimizer, Optimizers, ParamGroup};
use crate::run::Model;

/// The optimizer of a part of the model: its settings, its tensors, its step count, and the
/// accumulated batch weights.
pub(crate) struct OptimizerState {
    /// The name of the part; empty for the whole model.
    pub(super) part: String,
    pub(super) scope: Scope,
}

const WHOLE: &str = "optimizer";

/// Extracts the part of the model from the name of a saved optimizer state. Returns `None` if the
/// name is not that of an optimizer state.
pub(super) fn part_of(name: &str) -> Option<&str> {
    let part = name.strip_prefix(WHOLE)?;
    if part.is_empty() { Some(part) } else { part.strip_prefix('/') }
}

/// Describes the optimizer of a part, or of the entire model if the part is empty.
pub(super) fn described(part: &str) -> String {
    match part {
        "" => "an optimizer of the entire model".to_owned(),
        part => format!("an optimizer of the part `{}`", shortened(part)),
    }
}

/// The settings of a parameter group by name.
fn settings(group: &ParamGroup) -> BTreeMap<&str, f64> {
    group.settings().collect()
}

/// Returns the parameters of an optimizer, with their names.
fn named(optimizer: &dyn Optimizer) -> impl Iterator<Item = (&str, &Tensor)> {
    optimizer.groups().iter().flat_map(|group| group.names().zip(group.parameters()))
}

/// The key that says that the gradients of an open accumulation window are divided.
const DIVIDED: &str = "gradients_are_divided";

/// The start of the names of divided gradients, which are sums over all ranks.
const SUM: &str = "sum of gradients/";

/// Whether every rank loads a tensor of the state: a sum of gradients, if they are divided no
/// longer.
fn is_needed_everywhere(optimizer: &dyn Optimizer, name: &str) -> bool {
    name.starts_with(SUM) && optimizer.divided_gradients().is_none()
}

/// Replaces the gradients of an optimizer with sums over all ranks. If it divides its gradients,
/// keeps those of this rank's share.
fn load_sums(optimizer: &mut dyn Optimizer, are_divided: bool, sums: NamedTensors) -> Result<()> {
    optimizer.zero_grad()?;
    let divided = optimizer.divided_gradients();
    let sums: BTreeMap<String, Tensor> = sums.into_iter().collect();
    for (name, parameter) in named(optimizer) {
        let Some(sum) = sums.get(&format!("{SUM}{name}")) else { continue };
        if divided.is_none_or(|divided| divided.is_own(name)) {
            let sum = sum.f_to_device(parameter.device())?.f_to_kind(parameter.kind())?;
            libtorch::set_grad(name, parameter, &sum)?;
        }
    }
    if let Some(divided) = divided {
        divided.set_divided(are_divided);
    }
    Ok(())
}

impl OptimizerState {
    fn optimizer<'o>(&self, optimizers: &'o Optimizers) -> Result<&'o dyn Optimizer> {
        let optimizer = optimizers.for_part(&self.part).ok();
        optimizer.ok_or_else(|| Error::usage(format!("the trainer no longer has {}", described(&self.part))))
    }

    /// The part's name with a leading space, for messages about the optimizer.
    fn named(&self) -> String {
        if self.part.is_empty() { String::new() } else { format!(" `{}`", self.part) }
    }
}

impl OptimizerState {
    /// Returns the current state.
    pub(super) fn save(&self, optimizers: &Optimizers) -> Result<Saved> {
        let optimizer = self.optimizer(optimizers)?;
        let groups = optimizer.groups();
        let mut saved = Saved::new();
        saved.set("algorithms", &groups.iter().map(ParamGroup::algorithm).collect::<Vec<_>>())?;
        saved.set("settings", &groups.iter().map(settings).collect::<Vec<_>>())?;
        for (part, _, used_lrs, steps, accumulated) in
            optimizers.parts().filter(|optimizer| optimizer.0 == self.part)
        {
            saved.set("used_lrs", used_lrs)?;
            saved.set("steps", &steps)?;
            saved.set("accumulated", &accumulated)?;
            saved.set("is_current", &(part == optimizers.current_name()))?;
        }
        for (name, tensor) in optimizer.state() {
            saved.set_tensor(&name, &tensor)?;
        }
        if optimizer.state_is_divided()? {
            saved.shares = std::mem::take(&mut saved.tensors);
        }
        if let Some(divided) = optimizer.divided_gradients().filter(|divided| divided.are_divided()) {
            saved.set(DIVIDED, &true)?;
            for (name, parameter) in named(optimizer) {
                let grad = parameter.grad();
                if grad.defined() && divided.is_own(name) {
                    saved.shares.insert(format!("{SUM}{name}"), grad);
                }
            }
        }
        Ok(saved)
    }

    /// Loads a saved state: the settings first, because they determine which tensors exist.
    pub(super) fn load(&self, optimizers: &mut Optimizers, saved: &Saved) -> Result<()> {
        let name = &*self.name();
        let optimizer = optimizers.for_part_mut(&self.part)?;
        let settings: Vec<BTreeMap<String, f64>> = value(name, "settings", saved)?;
        for (group, settings) in optimizer.groups_mut().iter_mut().zip(settings) {
            for (name, value) in settings {
                let own = group.get(&name)?;
                if own.to_bits() != value.to_bits() && !(own.is_nan() && value.is_nan()) {
                    group.set(&name, value)?;
                }
            }
        }
        let tensors = saved.tensors.iter().chain(&saved.shares);
        let tensors = tensors.map(|(name, tensor)| (name.clone(), tensor.shallow_clone()));
        let (sums, tensors): (NamedTensors, NamedTensors) =
            tensors.partition(|(name, _)| name.starts_with(SUM));
        optimizer.load_state(&tensors)?;
        load_sums(optimizer, saved.contains(DIVIDED), sums)?;
        let used_lrs = value(name, "used_lrs", saved)?;
        optimizers.restore(
            &self.part,
            used_lrs,
            value(name, "steps", saved)?,
            value(name, "accumulated", saved)?,
        );
        if value(name, "is_current", saved)? {
            optimizers.select_if_present(&self.part);
        }
        Ok(())
    }
}

impl Part for OptimizerState {
    fn name(&self) -> Cow<'static, str> {
        if self.part.is_empty() { WHOLE.into() } else { format!("{WHOLE}/{}", self.part).into() }
    }

    fn scope(&self) -> Scope {
        self.scope
    }

    fn file(&self) -> Option<&'static str> {
        Some(OPTIMIZER)
    }

    /// Outside of an entry point, nothing is loaded, so the result does not matter.
    fn is_divided(&self, optimizers: &Optimizers) -> bool {
        self.optimizer(optimizers).and_then(Optimizer::state_is_divided).unwrap_or(false)
    }

    fn is_in_share(&self, optimizers: &Optimizers, name: &str) -> bool {
        let is_in_share =
            |optimizer: &dyn Optimizer| optimizer.is_in_share(name) || is_needed_everywhere(optimizer, name);
        self.optimizer(optimizers).is_ok_and(is_in_share)
    }

    fn is_needed_elsewhere(&self, optimizers: &Optimizers, name: &str) -> bool {
        let is_everywhere = |optimizer: &dyn Optimizer| is_needed_everywhere(optimizer, name);
        !self.is_in_share(optimizers, name) || self.optimizer(optimizers).is_ok_and(is_everywhere)
    }

    fn why_inexact(&self, _fit: &FitState, model: &Model) -> Option<String> {
        let is_complete = self.optimizer(&model.optimizers).is_ok_and(Optimizer::state_is_complete);
        let of = if self.part.is_empty() { String::new() } else { format!(" of `{}`", self.part) };
        (!is_complete).then(|| {
            format!(
                "the state of the optimizer{of} cannot be read, as is the case for tch's own optimizers: use an optimizer of this crate"
            )
        })
    }

    fn validate(&self, saved: &Saved) -> Result<()> {
        let name = &*self.name();
        let algorithms: Vec<String> = value(name, "algorithms", saved)?;
        let settings: Vec<BTreeMap<String, f64>> = value(name, "settings", saved)?;
        let used_lrs: Vec<f64> = value(name, "used_lrs", saved)?;
        let accumulated: Accumulated = value(name, "accumulated", saved)?;
        let _: bool = value(name, "is_current", saved)?;
        let are_lrs = used_lrs.is_empty() || used_lrs.len() == settings.len();
        require(
            name,
            &[
                ("steps", is_count(value(name, "steps", saved)?)),
                ("algorithms", algorithms.len() == settings.len()),
                ("accumulated", accumulated.is_sound()),
                ("used_lrs", are_lrs && used_lrs.into_iter().all(f64::is_finite)),
            ],
        )
    }

    fn check(&self, _fit: &FitState, model: &Model, saved: &Saved, _why: &mut Vec<String>) -> Result<()> {
        let name = self.name();
        let named = self.named();
        let algorithms: Vec<String> = value(&name, "algorithms", saved)?;
        let own = self.optimizer(&model.optimizers)?.groups();
        if own.len() != algorithms.len() {
            return Err(Error::usage(format!(
                "the number of parameter groups of the optimizer{named} is {} in the checkpoint, but {} in this trainer: define \
                 the same groups as when it was written",
                algorithms.len(),
                own.len()
            )));
        }
        match own.iter().zip(&algorithms).find(|(group, saved)| group.algorithm() != saved.as_str()) {
            None => Ok(()),
            Some((group, saved)) => Err(Error::usage(format!(
                "the optimizer{named} is {} in the checkpoint, but {} in this trainer: use the same optimizer as when it was \
                 written",
                shortened(saved),
                group.algorithm()
            ))),
        }
    }

    fn check_absent(&self) -> Result<String> {
        Err(Error::usage(format!(
            "this trainer has {}, but the checkpoint does not: use the same optimizers as when it was written",
            described(&self.part)
        )))
    }
}
