//! Optimizers on libtorch's fused and foreach kernels, which hold their state as tensors.
//!
//! | | kernels | state of each parameter |
//! |---|---|---|
//! | [`Sgd`] | fused | with momentum `momentum_buffer`, `step` |
//! | [`Adam`], [`AdamW`] | fused | `exp_avg`, `exp_avg_sq`, `step`, with `amsgrad` `max_exp_avg_sq` |
//! | [`Adagrad`] | fused | `sum`, `step` |
//! | [`RmsProp`] | foreach | `square_avg`, centred `grad_avg`, with momentum `momentum_buffer` |
//! | [`Lion`] | foreach | `exp_avg` |
//! | [`Muon`] | foreach | `momentum_buffer` |
//! | [`Tch`] | tch's own | out of reach |
//!
//! ```
//! use trainer::optim::{AdamW, Group};
//!
//! let optimizer = AdamW::new(1e-3)
//!     .group("*.bias", Group::new().weight_decay(0.0))
//!     .group("encoder.*", Group::new().frozen());
//! ```
//!
//! A parameter without a gradient, in this step or in any, is left as it is: nothing decays, and its count of steps stays. What
//! is frozen in the `VarStore` is such a parameter; what is frozen in a [group](Group::frozen) holds no state either until it
//! is thawed.
//!
//! The state of parameters in bf16 or half is in float, and each step is computed in float and rounded once. An update below
//! half of a parameter's last digit is lost in that: where this matters, keep the parameters in float.

mod adagrad;
mod adam;
mod base;
mod group;
mod lion;
mod muon;
mod parts;
mod rms_prop;
mod rule;
mod sgd;
mod tch;

use ::tch::Tensor;
use std::collections::{HashMap, HashSet};

pub use adagrad::Adagrad;
pub use adam::{Adam, AdamW};
pub use group::{Group, ParamGroup};
pub use lion::Lion;
pub use muon::Muon;
pub(crate) use parts::{Gathered, Optimizers};
pub use rms_prop::RmsProp;
pub use sgd::Sgd;

pub use self::tch::Tch;
use crate::error::{Error, Result};
use crate::vars::Vars;

/// Updates parameters by their gradients.
pub trait Optimizer: Send {
    /// Takes the parameters of a task: when the trainer is built, and anew when `setup` has added, replaced or removed some. The
    /// settings of groups that are still there, and the [`state`](Optimizer::state) of parameters that are, are then put back.
    /// Where more variables [may follow](Vars::may_grow), settings for some that are missing are no error yet.
    ///
    /// # Errors
    ///
    /// When it cannot update one of them.
    fn bind(&mut self, vars: &Vars) -> Result<()>;

    /// Updates every parameter that has a gradient.
    ///
    /// # Errors
    ///
    /// Those of libtorch.
    fn step(&mut self) -> Result<()>;

    /// Drops the gradients.
    ///
    /// # Errors
    ///
    /// Those of libtorch.
    fn zero_grad(&mut self) -> Result<()>;

    /// The parameter groups.
    fn groups(&self) -> &[ParamGroup];

    /// The parameter groups, to be changed: the learning rate, say.
    fn groups_mut(&mut self) -> &mut [ParamGroup];

    /// Its state by name, `exp_avg/fc1.weight`. The tensors share their storage with it.
    fn state(&self) -> Vec<(String, Tensor)>;

    /// Is [`state`](Optimizer::state) all that it remembers from step to step, so that a run can be resumed exactly?
    fn state_is_complete(&self) -> bool {
        true
    }

    /// Puts back what [`state`](Optimizer::state) gave, after the settings of the groups were put back: they say which state
    /// there is. The tensors are copied.
    ///
    /// # Errors
    ///
    /// Returns an error that lists every tensor that is missing, that it has no place for, or that is of another shape or kind.
    /// Nothing was copied then.
    fn load_state(&mut self, state: &[(String, Tensor)]) -> Result<()> {
        copy_state(&self.state(), state, Vec::new())
    }
}

/// One that is chosen while the program runs.
impl<O: Optimizer + ?Sized> Optimizer for Box<O> {
    fn bind(&mut self, vars: &Vars) -> Result<()> {
        (**self).bind(vars)
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

    fn state(&self) -> Vec<(String, Tensor)> {
        (**self).state()
    }

    fn state_is_complete(&self) -> bool {
        (**self).state_is_complete()
    }

    fn load_state(&mut self, state: &[(String, Tensor)]) -> Result<()> {
        (**self).load_state(state)
    }
}

/// Copies state by name, if there is a tensor for each and no mistake was found before.
fn copy_state(own: &[(String, Tensor)], saved: &[(String, Tensor)], mut mistakes: Vec<String>) -> Result<()> {
    let places: HashMap<_, _> = own.iter().map(|(name, tensor)| (name, tensor)).collect();
    let names: HashSet<_> = saved.iter().map(|(name, _)| name).collect();
    let missing = own.iter().filter(|(name, _)| !names.contains(name));
    mistakes.extend(missing.map(|(name, _)| format!("`{name}` is missing")));
    let mut copies = Vec::new();
    for (name, tensor) in saved {
        match places.get(name) {
            None => mistakes.push(format!("there is no place for `{name}`")),
            Some(place) if place.size() != tensor.size() => {
                mistakes.push(format!("`{name}` is {:?}, not {:?}", tensor.size(), place.size()));
            }
            Some(place) if place.kind() != tensor.kind() => {
                let (there, here) = (tensor.kind(), place.kind());
                mistakes.push(format!("`{name}` is of kind {there:?}, not {here:?}"));
            }
            Some(place) => copies.push((place.shallow_clone(), tensor)),
        }
    }
    if !mistakes.is_empty() {
        let mistakes = mistakes.join("; ");
        return Err(Error::usage(format!("this is not the state of this optimizer: {mistakes}")));
    }
    for (mut place, tensor) in copies {
        place.f_copy_(&tensor.f_detach()?)?;
    }
    Ok(())
}
