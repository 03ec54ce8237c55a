//! Optimizers built on libtorch's fused and foreach kernels. Their state consists of tensors.
//!
//! | optimizer | kernels | state of each parameter |
//! |---|---|---|
//! | [`Sgd`] | fused | with momentum: `momentum_buffer`, `step` |
//! | [`Adam`], [`AdamW`] | fused | `exp_avg`, `exp_avg_sq`, `step`; with `amsgrad`: `max_exp_avg_sq` |
//! | [`Adagrad`] | fused | `sum`, `step` |
//! | [`RmsProp`] | foreach | `square_avg`; with `centered`: `grad_avg`; with momentum: `momentum_buffer` |
//! | [`Lion`] | foreach | `exp_avg` |
//! | [`Muon`] | foreach | `momentum_buffer` |
//! | [`Custom`] | those of your own [`Algorithm`] | defined by the algorithm |
//! | [`Tch`] | chosen by tch | not accessible |
//!
//! ```
//! use trainer::optim::{AdamW, Group};
//!
//! let optimizer = AdamW::new(1e-3)
//!     .group("*.bias", Group::new().weight_decay(0.0))
//!     .group("encoder.*", Group::new().frozen(true));
//! ```
//!
//! Layer-wise learning rates are parameter groups too. In this example, the learning rate is 1e-3
//! for the head, 8e-4 for the second layer, and 6.4e-4 for the first layer:
//!
//! ```
//! use trainer::optim::AdamW;
//!
//! let optimizer = AdamW::new(1e-3).layer_decay(0.8, ["layer1.*", "layer2.*", "head.*"]);
//! ```
//!
//! [`Sharded`] divides the state of any of these optimizers, except [`Tch`], among several
//! processes, and with [`Sharded::gradients`] the gradients too.
//!
//! A step skips every parameter that has no gradient: the parameter, its state and its step count
//! do not change. This includes parameters frozen in the `VarStore`. Parameters frozen in a
//! [group](Group::frozen) also have no state until they are thawed.
//!
//! For parameters in bf16 or half precision, the state is kept in `f32`, and each step is computed
//! in `f32` and rounded once. An update smaller than half a unit in the parameter's last place is
//! lost in the rounding. If this matters, keep the parameters in `f32`.

mod adagrad;
mod adam;
mod algorithm;
mod custom;
mod divided;
mod group;
mod lion;
mod muon;
mod optimizer_core;
mod parts;
mod rms_prop;
mod row;
mod sgd;
mod sharded;
mod tch;

use ::tch::Tensor;
use std::collections::{HashMap, HashSet};

pub use adagrad::Adagrad;
pub use adam::{Adam, AdamW};
pub use algorithm::{Algorithm, Setting, StateSlot};
pub use custom::Custom;
pub use divided::DividedGradients;
pub(crate) use divided::PassPlan;
pub(crate) use group::DEFAULT;
pub use group::{Group, ParamGroup, Update};
pub use lion::Lion;
pub use muon::Muon;
pub(crate) use parts::{Accumulated, Optimizers};
pub use rms_prop::RmsProp;
pub use row::ParameterRow;
pub use sgd::Sgd;
pub use sharded::Sharded;

pub use self::tch::Tch;
use crate::error::{Error, Result};
use crate::model::vars::Vars;
use crate::values::facts::SettingList;

/// Updates parameters from their gradients.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an optimizer of this crate",
    label = "does not implement `trainer::optim::Optimizer`",
    note = "the optimizers are in `trainer::optim`, such as `AdamW::new(1e-3)`; wrap one of tch's optimizers in `optim::Tch::new(config, \
            &vs, lr)?`"
)]
pub trait Optimizer: Send {
    /// Binds the optimizer to the parameters of a task.
    ///
    /// Called when the trainer is built, and again if `setup` added, replaced or removed
    /// parameters. The trainer then restores the settings of the groups and the
    /// [`state`](Optimizer::state) of the parameters that still exist. While more variables [may be
    /// added](Vars::may_grow), settings for parameters that do not exist are not an error yet.
    ///
    /// # Errors
    ///
    /// Returns an error if
    ///
    /// - a setting is invalid;
    /// - a group has no parameter;
    /// - the optimizer cannot update one of the parameters.
    fn bind(&mut self, vars: &Vars) -> Result<()>;

    /// Does the same as [`bind`](Optimizer::bind), for one of several processes that share the
    /// parameters: [`step`](Optimizer::step) updates only the parameters whose names `is_own`
    /// accepts, and [`state`](Optimizer::state) contains only their state.
    /// [`groups`](Optimizer::groups) still contains all parameters. Called instead of `bind` if the
    /// optimizer is [`Sharded`].
    ///
    /// # Errors
    ///
    /// Returns an error in the same cases as `bind`. The default implementation always returns an
    /// error, because an optimizer can be sharded only if it updates each parameter independently
    /// of the others.
    fn bind_share(&mut self, vars: &Vars, is_own: &dyn Fn(&str) -> bool) -> Result<()> {
        let _ = (vars, is_own);
        Err(Error::usage(
            "`Sharded::new(…)`: this optimizer cannot update only some of the parameters: use an optimizer of this crate \
             other than `Tch`, or implement `Optimizer::bind_share`",
        ))
    }

    /// Updates every parameter that has a gradient.
    ///
    /// # Errors
    ///
    /// Returns an error if
    ///
    /// - the optimizer does not support a gradient, such as a sparse one;
    /// - a parameter was changed since [`bind`](Optimizer::bind) and can no longer be updated;
    /// - libtorch fails.
    fn step(&mut self) -> Result<()>;

    /// Drops the gradients.
    ///
    /// # Errors
    ///
    /// Returns an error if libtorch fails.
    fn zero_grad(&mut self) -> Result<()>;

    /// Returns the parameter groups.
    fn groups(&self) -> &[ParamGroup];

    /// Mutable access to the parameter groups, for example to set the learning rate.
    fn groups_mut(&mut self) -> &mut [ParamGroup];

    /// Returns the settings that are not part of the [groups](Optimizer::groups), such as those of
    /// an optimizer that wraps another optimizer. A resume compares them with those of the
    /// interrupted run. Like the settings of the groups, they must be equal on all ranks. By
    /// default, the list is empty.
    fn settings(&self) -> SettingList {
        SettingList::new()
    }

    /// Returns the state tensors by name, such as `exp_avg/fc1.weight`. They share their storage
    /// with the optimizer.
    #[doc(alias = "state_dict")]
    fn state(&self) -> Vec<(String, Tensor)>;

    /// Returns whether [`state`](Optimizer::state) contains everything that the optimizer carries
    /// from step to step, so that a run can be resumed exactly. Defaults to `true`.
    fn state_is_complete(&self) -> bool {
        true
    }

    /// Returns whether the state is divided among the processes that train together. If it is,
    /// [`state`](Optimizer::state) contains only the share of this process, and each process writes
    /// its own share when a checkpoint is saved. Defaults to `false`.
    ///
    /// # Errors
    ///
    /// Returns an error if the state is divided, but the other processes cannot be reached.
    fn state_is_divided(&self) -> Result<bool> {
        Ok(false)
    }

    /// Returns whether a tensor with this name in [`state`](Optimizer::state) belongs to the share
    /// of this process, if the state is divided. Defaults to `true`.
    fn is_in_share(&self, _name: &str) -> bool {
        true
    }

    /// Returns where the gradients are if they are divided among the processes that train together,
    /// as with [`Sharded::gradients`]. An optimizer that wraps another one must return that of the
    /// inner optimizer. Defaults to `None`: each process has all gradients.
    fn divided_gradients(&self) -> Option<&DividedGradients> {
        None
    }

    /// Restores the state that [`state`](Optimizer::state) returned. If the state is divided,
    /// restores only the share of this process, although the argument may also contain the shares
    /// of other processes. Called after the settings of the groups have been restored, because
    /// these determine which state exists. The tensors are copied.
    ///
    /// # Errors
    ///
    /// Returns an error if a tensor is missing or unexpected, if its shape or dtype differs, or if
    /// it is an invalid step count. The error lists all of these tensors, and nothing is copied.
    /// Also returns an error if libtorch fails.
    #[doc(alias = "load_state_dict")]
    fn load_state(&mut self, state: &[(String, Tensor)]) -> Result<()> {
        copy_state(&self.state(), state, Vec::new())
    }
}

/// An optimizer chosen at run time.
impl<O: Optimizer + ?Sized> Optimizer for Box<O> {
    fn bind(&mut self, vars: &Vars) -> Result<()> {
        (**self).bind(vars)
    }

    fn bind_share(&mut self, vars: &Vars, is_own: &dyn Fn(&str) -> bool) -> Result<()> {
        (**self).bind_share(vars, is_own)
    }

    fn step(&mut self) -> Result<()> {
        (**self).step()
    }

    fn zero_grad(&mut self) -> Result<()> {
        (**self).zero_grad()
    }

    fn groups(&self) -> &[ParamGroup] {
        (**self).groups()
    }

    fn groups_mut(&mut self) -> &mut [ParamGroup] {
        (**self).groups_mut()
    }

    fn settings(&self) -> SettingList {
        (**self).settings()
    }

    fn state(&self) -> Vec<(String, Tensor)> {
        (**self).state()
    }

    fn state_is_complete(&self) -> bool {
        (**self).state_is_complete()
    }

    fn state_is_divided(&self) -> Result<bool> {
        (**self).state_is_divided()
    }

    fn is_in_share(&self, name: &str) -> bool {
        (**self).is_in_share(name)
    }

    fn divided_gradients(&self) -> Option<&DividedGradients> {
        (**self).divided_gradients()
    }

    fn load_state(&mut self, state: &[(String, Tensor)]) -> Result<()> {
        (**self).load_state(state)
    }
}

/// Copies state by name, provided that all tensors match and that `mistakes` is empty.
fn copy_state(own: &[(String, Tensor)], saved: &[(String, Tensor)], mut mistakes: Vec<String>) -> Result<()> {
    let places: HashMap<_, _> = own.iter().map(|(name, tensor)| (name, tensor)).collect();
    let names: HashSet<_> = saved.iter().map(|(name, _)| name).collect();
    let missing = own.iter().filter(|(name, _)| !names.contains(name));
    mistakes.extend(missing.map(|(name, _)| format!("`{name}` is missing")));
    let mut copies = Vec::new();
    for (name, tensor) in saved {
        match places.get(name) {
            None => mistakes.push(format!("`{name}` is unexpected")),
            Some(place) if place.size() != tensor.size() => {
                mistakes.push(differs(name, "shape", place.size(), tensor.size()));
            }
            Some(place) if place.kind() != tensor.kind() => {
                mistakes.push(differs(name, "dtype", place.kind(), tensor.kind()));
            }
            Some(place) => copies.push((place.shallow_clone(), tensor)),
        }
    }
    if !mistakes.is_empty() {
        let mistakes = mistakes.join("; ");
        return Err(Error::usage(format!(
            "the state does not match this optimizer: {mistakes}; load a state that this optimizer saved for the same parameters"
        )));
    }
    for (mut place, tensor) in copies {
        place.f_copy_(&tensor.f_detach()?)?;
    }
    Ok(())
}

fn differs<T: std::fmt::Debug>(name: &str, what: &str, expected: T, found: T) -> String {
    format!("`{name}`: expected {what} {expected:?}, found {found:?} in the saved state")
}
