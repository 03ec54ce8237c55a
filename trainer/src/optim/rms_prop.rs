//! RMSprop.

use super::ParamGroup;
use super::base::{Base, optimizer};
use super::rule::{Rule, Setting, Slot};
use crate::error::Result;
use crate::libtorch;

/// RMSprop (Tieleman and Hinton, *Neural Networks for Machine Learning*, lecture 6.5, 2012), with momentum and in Graves's
/// centred variant (*Generating Sequences With Recurrent Neural Networks*, 2013), by the formulas of `torch.optim.RMSprop`.
#[derive(Debug)]
pub struct RmsProp(Base);

static RULE: Rule = Rule {
    name: "RmsProp",
    settings: &[
        Setting::fraction("alpha", 0.99),
        Setting::at_least_0("eps", 1e-8),
        Setting::at_least_0("momentum", 0.0),
        Setting::flag("centered", false),
        Setting::flag("maximize", false),
    ],
    state: &[
        Slot::elements("square_avg"),
        Slot::elements("grad_avg").only_with("centered"),
        Slot::elements("momentum_buffer").only_with("momentum"),
    ],
    refuses: |_| None,
    step,
};

impl RmsProp {
    /// With this learning rate, alpha of 0.99, eps of 1e-8, no momentum and no weight decay.
    #[must_use]
    pub fn new(lr: f64) -> Self {
        RmsProp(Base::new(&RULE, lr, 0.0))
    }

    /// The decay rate of the running mean square.
    #[must_use]
    pub fn alpha(self, alpha: f64) -> Self {
        RmsProp(self.0.with("alpha", alpha))
    }

    /// Added to the denominator.
    #[must_use]
    pub fn eps(self, eps: f64) -> Self {
        RmsProp(self.0.with("eps", eps))
    }

    /// Momentum, 0 unless set.
    #[must_use]
    pub fn momentum(self, momentum: f64) -> Self {
        RmsProp(self.0.with("momentum", momentum))
    }

    /// Divides by the running standard deviation.
    #[must_use]
    pub fn centered(self, centered: bool) -> Self {
        RmsProp(self.0.with_flag("centered", centered))
    }

    /// Makes the loss more, not less.
    #[must_use]
    pub fn maximize(self, maximize: bool) -> Self {
        RmsProp(self.0.with_flag("maximize", maximize))
    }
}

fn step(group: &ParamGroup) -> Result<()> {
    let [alpha, eps, momentum, centered, maximize] = group.values();
    let settings = libtorch::RmsProp {
        lr: group.lr,
        alpha,
        eps,
        momentum,
        weight_decay: group.weight_decay,
        maximize: maximize != 0.0,
    };
    settings.step(
        group.list(),
        group.slot(0),
        (centered != 0.0).then(|| group.slot(1)),
        (momentum != 0.0).then(|| group.slot(2)),
    )
}

optimizer!(RmsProp, "L2 penalty, added to the gradient; 0 unless set.");
