//! The variables of the task, their gradients, and the random state of libtorch.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use tch::Kind;

use super::part::{Part, Scope, value};
use crate::checkpoint::files::{MODEL, STATE};
use crate::checkpoint::progress::FitState;
use crate::checkpoint::{Saved, weights};
use crate::error::Result;
use crate::libtorch::{self, wide};
use crate::model::vars::{Var, Vars};
use crate::run::Model;

/// The parameters and buffers of the task.
pub(crate) struct Variables {
    scope: Scope,
    /// The number of ranks whose variables were added to those of rank 0.
    added: Cell<u32>,
    /// The dtypes of the variables whose sum has a wider one.
    narrow: RefCell<BTreeMap<String, Kind>>,
}

impl Variables {
    pub(super) fn new(scope: Scope) -> Self {
        Variables { scope, added: Cell::new(0), narrow: RefCell::default() }
    }
}

/// The name of the part with the variables.
pub(crate) const VARIABLES: &str = "variables";

impl Variables {
    /// Returns the current state.
    pub(super) fn save(&self, vars: &Vars) -> Result<Saved> {
        let mut saved = Saved::new();
        for var in vars.iter() {
            saved.set_tensor(&var.name, &var.tensor.f_detach()?)?;
        }
        Ok(saved)
    }

    /// Copies a saved state into the variables.
    pub(super) fn load(&self, vars: &Vars, saved: &Saved) -> Result<()> {
        let _no_grad = tch::no_grad_guard();
        vars.iter().try_for_each(|var| saved.copy_into(&var.name, &mut var.tensor.shallow_clone()))
    }
}

impl Part for Variables {
    fn name(&self) -> Cow<'static, str> {
        VARIABLES.into()
    }

    fn scope(&self) -> Scope {
        self.scope
    }

    fn file(&self) -> Option<&'static str> {
        Some(MODEL)
    }

    fn check(&self, _fit: &FitState, model: &Model, saved: &Saved, _why: &mut Vec<String>) -> Result<()> {
        weights::check_fit(&model.vars, &saved.forms())
    }

    /// If the number of ranks has changed, ranks that train separately begin with the mean of the
    /// saved weights.
    fn merge(&self, _rank: u32, merged: &mut Saved, other: Saved) -> Result<()> {
        let _no_grad = tch::no_grad_guard();
        merged.read_all()?;
        if self.added.replace(self.added.get() + 1) == 0 {
            merged.own_its_memory()?;
            for (name, sum) in &mut merged.tensors {
                let kind = sum.kind();
                *sum = wide(sum);
                if sum.kind() != kind {
                    self.narrow.borrow_mut().insert(name.clone(), kind);
                }
            }
        }
        for (name, value) in other.tensors {
            if let Some(sum) = merged.tensors.get_mut(&name).filter(|sum| sum.is_floating_point()) {
                let _ = sum.f_add_(&value)?;
            }
        }
        Ok(())
    }

    fn merged(&self, _rank: u32, _written_by: u32, mut merged: Saved) -> Result<Saved> {
        let _no_grad = tch::no_grad_guard();
        let added = self.added.take();
        if added > 0 {
            for sum in merged.tensors.values().filter(|sum| sum.is_floating_point()) {
                let _ = sum.shallow_clone().f_div_scalar_(f64::from(added + 1))?;
            }
        }
        for (name, kind) in self.narrow.take() {
            if let Some(mean) = merged.tensors.get_mut(&name) {
                *mean = mean.f_to_kind(kind)?;
            }
        }
        Ok(merged)
    }
}

/// The choice of variables that get a gradient, and the gradients themselves: those of an open
/// accumulation window, and those that a hook kept by skipping an optimizer step.
pub(crate) struct Gradients;

const GRADIENTS: &str = "gradients";

/// Whether the variable is a frozen parameter, or a buffer that gets a gradient.
fn is_switched(var: &Var) -> bool {
    var.tensor.requires_grad() != var.is_parameter
}

impl Gradients {
    /// Returns the current state. Gradients that are divided among the ranks are part of the state
    /// of their optimizer.
    pub(super) fn save(&self, Model { vars, optimizers, .. }: &Model) -> Result<Saved> {
        let switched: Vec<&str> =
            vars.iter().filter(|var| is_switched(var)).map(|var| var.name.as_str()).collect();
        let mut saved = Saved::new();
        saved.set("switched", &switched)?;
        for var in vars.iter() {
            let grad = var.tensor.grad();
            if grad.defined() && !optimizers.has_divided_sum(&var.name) {
                saved.set_tensor(&var.name, &grad)?;
            }
        }
        Ok(saved)
    }

    /// Loads a saved state. The states of the optimizers, which are loaded before, have dropped the
    /// gradients that existed.
    pub(super) fn load(&self, Model { vars, .. }: &mut Model, saved: &Saved) -> Result<()> {
        let switched: Vec<String> = value(GRADIENTS, "switched", saved)?;
        for var in vars.iter() {
            if is_switched(var) != switched.contains(&var.name) {
                let _ = var.tensor.f_set_requires_grad(!var.tensor.requires_grad())?;
            }
        }
        for var in vars.iter() {
            if let Some(grad) = saved.tensors.get(&var.name) {
                let grad = grad.f_to_device(var.tensor.device())?.f_to_kind(var.tensor.kind())?;
                libtorch::set_grad(&var.name, &var.tensor, &grad)?;
            }
        }
        Ok(())
    }
}

impl Part for Gradients {
    fn name(&self) -> Cow<'static, str> {
        GRADIENTS.into()
    }

    fn scope(&self) -> Scope {
        Scope::Rank
    }

    fn file(&self) -> Option<&'static str> {
        Some(STATE)
    }

    fn validate(&self, saved: &Saved) -> Result<()> {
        value::<Vec<String>>(GRADIENTS, "switched", saved).map(drop)
    }

    /// The gradients of the ranks are averaged, and a missing one counts as 0.
    fn merge(&self, _rank: u32, merged: &mut Saved, other: Saved) -> Result<()> {
        let _no_grad = tch::no_grad_guard();
        for (name, grad) in other.tensors {
            let sum = match merged.tensors.get(&name) {
                Some(sum) => sum.f_add(&wide(&grad))?,
                None => wide(&grad),
            };
            merged.tensors.insert(name, sum);
        }
        Ok(())
    }

    fn merged(&self, _rank: u32, written_by: u32, mut merged: Saved) -> Result<Saved> {
        let _no_grad = tch::no_grad_guard();
        if written_by > 1 {
            for grad in merged.tensors.values_mut() {
                *grad = grad.f_div_scalar(f64::from(written_by))?;
            }
        }
        Ok(merged)
    }
}
