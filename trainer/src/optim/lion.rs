//! Lion.

use super::ParamGroup;
use super::base::{Base, optimizer};
use super::rule::{Rule, Setting, Slot};
use crate::error::Result;
use crate::libtorch;

/// Lion (Chen et al., *Symbolic Discovery of Optimization Algorithms*, 2023, algorithm 2). Every element moves by the learning
/// rate in each step, so that it wants a smaller one than Adam, three to ten times, and a larger weight decay.
#[derive(Debug)]
pub struct Lion(Base);

static RULE: Rule = Rule {
    name: "Lion",
    settings: &[
        Setting::fraction("beta1", 0.9),
        Setting::fraction("beta2", 0.99),
        Setting::flag("maximize", false),
    ],
    state: &[Slot::elements("exp_avg")],
    refuses: |_| None,
    step,
};

impl Lion {
    /// With this learning rate, betas of 0.9 and 0.99, and no weight decay.
    #[must_use]
    pub fn new(lr: f64) -> Self {
        Lion(Base::new(&RULE, lr, 0.0))
    }

    /// How much of the running mean is in the update, and how much of it stays.
    #[must_use]
    pub fn betas(self, beta1: f64, beta2: f64) -> Self {
        Lion(self.0.with("beta1", beta1).with("beta2", beta2))
    }

    /// Makes the loss more, not less.
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
    settings.step(group.list(), group.slot(0))
}

optimizer!(Lion, "Decoupled weight decay; 0 unless set.");
