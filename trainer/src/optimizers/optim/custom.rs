//! [`Custom`]: an optimizer for a custom [`Algorithm`].

use super::algorithm::Algorithm;
use super::optimizer_core::{OptimizerCore, optimizer};

/// An optimizer that runs a custom [`Algorithm`].
///
/// Use this when you have an update rule of your own.
///
/// It has all features of the built-in optimizers: named hyperparameters, which schedules and hooks
/// can change, and which are compared when a run resumes; groups by pattern; layer-wise learning
/// rates; state in checkpoints; and [sharding](super::Sharded). For an optimizer that updates
/// several parameters together, implement [`Optimizer`](super::Optimizer) instead.
///
/// ```
/// use trainer::optim::{Algorithm, Custom, Group, ParamGroup, Setting, StateSlot};
/// use trainer::prelude::*;
///
/// /// Moves every element by the learning rate, against the sign of the mean gradient.
/// static SIGNUM: Algorithm = Algorithm::new("Signum", step)
///     .settings(&[Setting::fraction("momentum", 0.9)])
///     .state(&[StateSlot::elements("momentum_buffer")]);
///
/// fn step(group: &ParamGroup) -> Result<()> {
///     let momentum = group.get("momentum")?;
///     for mut update in group.updates() {
///         let mean = &mut update.state[0];
///         let _ = mean.f_mul_scalar_(momentum)?.f_add_(&(update.grad * (1.0 - momentum)))?;
///         let _ = update.parameter.f_sub_(&(mean.f_sign()? * group.lr))?;
///     }
///     Ok(())
/// }
///
/// let optimizer =
///     Custom::new(&SIGNUM, 1e-3).set("momentum", 0.95).group("*.bias", Group::new().lr(2e-3));
/// ```
#[derive(Debug)]
pub struct Custom(OptimizerCore);

impl Custom {
    /// Creates an optimizer with this learning rate, without weight decay, and with the default
    /// values of the algorithm's hyperparameters.
    #[must_use]
    pub fn new(algorithm: &'static Algorithm, lr: f64) -> Self {
        Custom(OptimizerCore::new(algorithm, lr, 0.0))
    }

    /// Sets a hyperparameter of the algorithm. The value of a [flag](super::Setting::flag) is 1 or
    /// 0. An unknown name or an invalid value is an error when the trainer is built.
    #[must_use]
    pub fn set(self, name: &str, value: f64) -> Self {
        Custom(self.0.with(name, value))
    }
}

optimizer!(Custom, "Sets the weight decay, which the algorithm reads from the group. Defaults to 0.");
