//! Stochastic gradient descent.

use super::ParamGroup;
use super::base::{Base, optimizer};
use super::rule::{Rule, Setting, Slot};
use crate::error::Result;
use crate::libtorch;

/// Stochastic gradient descent, with momentum (Polyak 1964), Nesterov's variant (Sutskever et al.
/// 2013) and weight decay, by the formulas of `torch.optim.SGD`.
#[derive(Debug)]
pub struct Sgd(Base);

static RULE: Rule = Rule {
    name: "Sgd",
    settings: &[
        Setting::at_least_0("momentum", 0.0),
        Setting::fraction("dampening", 0.0),
        Setting::flag("nesterov", false),
        Setting::flag("maximize", false),
    ],
    state: &[
        Slot::elements("momentum_buffer").only_with("momentum"),
        // A first step is not dampened. Read on the CPU, so on no device anybody waits for it.
        Slot::steps_on_cpu().only_with("momentum"),
    ],
    refuses,
    step,
};

impl Sgd {
    /// Plain gradient descent with this learning rate.
    #[must_use]
    pub fn new(lr: f64) -> Self {
        Sgd(Base::new(&RULE, lr, 0.0))
    }

    /// Momentum, 0 unless set.
    #[must_use]
    pub fn momentum(self, momentum: f64) -> Self {
        Sgd(self.0.with("momentum", momentum))
    }

    /// What share of each gradient but the first does not enter the momentum; 0 unless set.
    #[must_use]
    pub fn dampening(self, dampening: f64) -> Self {
        Sgd(self.0.with("dampening", dampening))
    }

    /// Nesterov's momentum.
    #[must_use]
    pub fn nesterov(self, nesterov: bool) -> Self {
        Sgd(self.0.with_flag("nesterov", nesterov))
    }

    /// Makes the loss more, not less.
    #[must_use]
    pub fn maximize(self, maximize: bool) -> Self {
        Sgd(self.0.with_flag("maximize", maximize))
    }
}

fn refuses(group: &ParamGroup) -> Option<String> {
    let [momentum, dampening, nesterov, _] = group.values();
    let cannot = nesterov != 0.0 && (momentum == 0.0 || dampening != 0.0);
    let hint = "Sgd: Nesterov's variant needs momentum, and no dampening: `.momentum(0.9).nesterov(true)`";
    cannot.then(|| hint.to_owned())
}

fn step(group: &ParamGroup) -> Result<()> {
    let [momentum, dampening, nesterov, maximize] = group.values();
    let settings = libtorch::Sgd {
        lr: group.lr,
        momentum,
        dampening,
        weight_decay: group.weight_decay,
        nesterov: nesterov != 0.0,
        maximize: maximize != 0.0,
    };
    settings.step(group.list(), (momentum != 0.0).then(|| [group.slot(0), group.slot(1)]))
}

optimizer!(Sgd, "L2 penalty, added to the gradient; 0 unless set.");
