//! Adagrad.

use super::ParamGroup;
use super::base::{Base, optimizer};
use super::rule::{Rule, Setting, Slot};
use crate::error::Result;
use crate::libtorch;

/// Adagrad (Duchi et al., *Adaptive Subgradient Methods for Online Learning and Stochastic Optimization*, 2011), by the
/// formulas of `torch.optim.Adagrad`.
#[derive(Debug)]
pub struct Adagrad(Base);

static RULE: Rule = Rule {
    name: "Adagrad",
    settings: &[
        Setting::at_least_0("lr_decay", 0.0),
        Setting::at_least_0("eps", 1e-10),
        Setting::at_least_0("initial_accumulator_value", 0.0),
        Setting::flag("maximize", false),
    ],
    state: &[Slot::elements("sum").starting_at("initial_accumulator_value"), Slot::steps()],
    refuses: |_| None,
    step,
};

impl Adagrad {
    /// With this learning rate, eps of 1e-10, and no decay of rate or weights.
    #[must_use]
    pub fn new(lr: f64) -> Self {
        Adagrad(Base::new(&RULE, lr, 0.0))
    }

    /// The rate is divided by one more than this times the steps that a parameter has had; 0 unless set.
    #[must_use]
    pub fn lr_decay(self, lr_decay: f64) -> Self {
        Adagrad(self.0.with("lr_decay", lr_decay))
    }

    /// Added to the denominator.
    #[must_use]
    pub fn eps(self, eps: f64) -> Self {
        Adagrad(self.0.with("eps", eps))
    }

    /// What the sums of squares begin as, 0 unless set. Set while training, it counts for state that is made later, when a
    /// group is thawed.
    #[must_use]
    pub fn initial_accumulator_value(self, value: f64) -> Self {
        Adagrad(self.0.with("initial_accumulator_value", value))
    }

    /// Makes the loss more, not less.
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
    settings.step(group.list(), [group.slot(0), group.slot(1)])
}

optimizer!(Adagrad, "L2 penalty, added to the gradient; 0 unless set.");
