//! Lion.

use super::ParamGroup;
use super::algorithm::{Algorithm, Setting, StateSlot};
use super::optimizer_core::{OptimizerCore, optimizer};
use crate::error::Result;
use crate::libtorch;

/// The Lion optimizer (Chen et al., *Symbolic Discovery of Optimization Algorithms*, 2023,
/// algorithm 2). Each step changes every element by the learning rate, so Lion needs a learning
/// rate three to ten times smaller than Adam's, and a larger weight decay.
///
/// Use this when the state of [`AdamW`](super::AdamW) needs too much memory: Lion keeps one tensor
/// for each parameter instead of two.
///
/// ```
/// use trainer::optim::{Group, Lion};
///
/// // Instead of `AdamW::new(3e-4).weight_decay(0.1)`.
/// let optimizer = Lion::new(1e-4)
///     .weight_decay(0.3)
///     .group("*.bias", Group::new().weight_decay(0.0));
/// ```
#[derive(Debug)]
pub struct Lion(OptimizerCore);

static ALGORITHM: Algorithm = Algorithm {
    name: "Lion",
    settings: &[
        Setting::fraction("beta1", 0.9),
        Setting::fraction("beta2", 0.99),
        Setting::flag("maximize", false),
    ],
    state: &[StateSlot::elements("exp_avg")],
    refuses: |_| None,
    step,
};

impl Lion {
    /// Creates the optimizer with this learning rate, betas of 0.9 and 0.99, and no weight decay.
    #[must_use]
    pub fn new(lr: f64) -> Self {
        Lion(OptimizerCore::new(&ALGORITHM, lr, 0.0))
    }

    /// Sets `beta1`, the weight that the running mean of the gradient has in the update, and
    /// `beta2`, the decay rate of this mean. Defaults to 0.9 and 0.99.
    #[must_use]
    pub fn betas(self, beta1: f64, beta2: f64) -> Self {
        Lion(self.0.with("beta1", beta1).with("beta2", beta2))
    }

    /// Maximizes the objective instead of minimizing it. Off by default.
    #[must_use]
    pub fn maximize(self, maximize: bool) -> Self {
        Lion(self.0.with_flag("maximize", maximize))
    }
}

fn step(group: &ParamGroup) -> Result<()> {
    let [beta1, beta2, maximize] = group.values();
    let settings = libtorch::Lion {
        lr: group.lr,
        beta1,
        beta2,
        weight_decay: group.weight_decay,
        maximize: maximize != 0.0,
    };
    libtorch::lion(&settings, group.list(), group.slot(0))
}

optimizer!(Lion, "Sets the decoupled weight decay. Defaults to 0.");
