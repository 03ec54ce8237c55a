//! Adagrad.

use super::ParamGroup;
use super::algorithm::{Algorithm, Setting, StateSlot};
use super::optimizer_core::{OptimizerCore, optimizer};
use crate::error::Result;
use crate::libtorch;

/// The Adagrad optimizer (Duchi et al., *Adaptive Subgradient Methods for Online Learning and
/// Stochastic Optimization*, 2011), which computes the same updates as `torch.optim.Adagrad`.
///
/// Use this when some features are rare and their parameters seldom get a gradient.
///
/// ```
/// use trainer::optim::Adagrad;
///
/// let optimizer = Adagrad::new(1e-2).lr_decay(1e-4).initial_accumulator_value(0.1);
/// ```
#[derive(Debug)]
pub struct Adagrad(OptimizerCore);

static ALGORITHM: Algorithm = Algorithm {
    name: "Adagrad",
    settings: &[
        Setting::at_least("lr_decay", 0.0, 0.0),
        Setting::at_least("eps", 0.0, 1e-10),
        Setting::at_least("initial_accumulator_value", 0.0, 0.0),
        Setting::flag("maximize", false),
    ],
    state: &[StateSlot::elements("sum").starting_at("initial_accumulator_value"), StateSlot::steps()],
    refuses: |_| None,
    step,
};

impl Adagrad {
    /// Creates the optimizer with this learning rate, an eps of 1e-10, no learning-rate decay and
    /// no weight decay.
    #[must_use]
    pub fn new(lr: f64) -> Self {
        Adagrad(OptimizerCore::new(&ALGORITHM, lr, 0.0))
    }

    /// Sets the learning-rate decay: step `n` of a parameter, counted from 0, uses
    /// `lr / (1 + n · lr_decay)`. Defaults to 0. As in PyTorch, `n` stays at 16,777,216 once it is
    /// reached, because the steps of a parameter are counted in `f32`.
    #[must_use]
    pub fn lr_decay(self, lr_decay: f64) -> Self {
        Adagrad(self.0.with("lr_decay", lr_decay))
    }

    /// Sets the term added to the denominator for numerical stability. Defaults to 1e-10.
    #[must_use]
    pub fn eps(self, eps: f64) -> Self {
        Adagrad(self.0.with("eps", eps))
    }

    /// Sets the initial value of the sums of squared gradients. Defaults to 0. A change during
    /// training affects only state that is created later, when a frozen group is thawed.
    #[must_use]
    pub fn initial_accumulator_value(self, value: f64) -> Self {
        Adagrad(self.0.with("initial_accumulator_value", value))
    }

    /// Maximizes the objective instead of minimizing it. Off by default.
    #[must_use]
    pub fn maximize(self, maximize: bool) -> Self {
        Adagrad(self.0.with_flag("maximize", maximize))
    }
}

fn step(group: &ParamGroup) -> Result<()> {
    let [lr_decay, eps, _, maximize] = group.values();
    let settings = libtorch::Adagrad {
        lr: group.lr,
        lr_decay,
        eps,
        weight_decay: group.weight_decay,
        maximize: maximize != 0.0,
    };
    libtorch::adagrad(&settings, group.list(), [group.slot(0), group.slot(1)])
}

optimizer!(Adagrad, "Sets the weight decay: an L2 penalty, added to the gradient. Defaults to 0.");
