//! Adam, and Adam with decoupled weight decay.

use super::ParamGroup;
use super::base::{Base, optimizer};
use super::rule::{Rule, Setting, Slot};
use crate::error::Result;
use crate::libtorch;

/// Adam (Kingma and Ba, *Adam: A Method for Stochastic Optimization*, 2015), by the formulas of `torch.optim.Adam`.
#[derive(Debug)]
pub struct Adam(Base);

/// Adam with decoupled weight decay (Loshchilov and Hutter, *Decoupled Weight Decay
/// Regularization*, 2019), by the formulas of `torch.optim.AdamW`.
#[derive(Debug)]
pub struct AdamW(Base);

static ADAM: Rule = rule("Adam", |group| step(group, false));
static ADAMW: Rule = rule("AdamW", |group| step(group, true));

const fn rule(name: &'static str, step: fn(&ParamGroup) -> Result<()>) -> Rule {
    const SETTINGS: &[Setting] = &[
        Setting::fraction("beta1", 0.9),
        Setting::fraction("beta2", 0.999),
        Setting::at_least_0("eps", 1e-8),
        Setting::flag("amsgrad", false),
        Setting::flag("maximize", false),
    ];
    const STATE: &[Slot] = &[
        Slot::elements("exp_avg"),
        Slot::elements("exp_avg_sq"),
        Slot::steps(),
        Slot::elements("max_exp_avg_sq").only_with("amsgrad"),
    ];
    Rule { name, settings: SETTINGS, state: STATE, refuses: |_| None, step }
}

macro_rules! adam {
    ($name:ident, $rule:ident, $decay:literal, $new:literal) => {
        impl $name {
            #[doc = $new]
            #[must_use]
            pub fn new(lr: f64) -> Self {
                $name(Base::new(&$rule, lr, $decay))
            }

            /// The decay rates of the running mean and of the running mean square.
            #[must_use]
            pub fn betas(self, beta1: f64, beta2: f64) -> Self {
                $name(self.0.with("beta1", beta1).with("beta2", beta2))
            }

            /// Added to the denominator.
            #[must_use]
            pub fn eps(self, eps: f64) -> Self {
                $name(self.0.with("eps", eps))
            }

            /// Divides by the largest mean square so far (Reddi et al., *On the Convergence of Adam and Beyond*, 2018).
            #[must_use]
            pub fn amsgrad(self, amsgrad: bool) -> Self {
                $name(self.0.with_flag("amsgrad", amsgrad))
            }

            /// Makes the loss more, not less.
            #[must_use]
            pub fn maximize(self, maximize: bool) -> Self {
                $name(self.0.with_flag("maximize", maximize))
            }
        }
    };
}

adam!(Adam, ADAM, 0.0, "With this learning rate, betas of 0.9 and 0.999, eps of 1e-8 and no weight decay.");
adam!(
    AdamW,
    ADAMW,
    0.01,
    "With this learning rate, betas of 0.9 and 0.999, eps of 1e-8 and weight decay of 0.01."
);
optimizer!(Adam, "L2 penalty, added to the gradient.");
optimizer!(AdamW, "Decoupled weight decay.");

fn step(group: &ParamGroup, decoupled: bool) -> Result<()> {
    let [beta1, beta2, eps, amsgrad, maximize] = group.values();
    let settings = libtorch::Adam {
        lr: group.lr,
        beta1,
        beta2,
        eps,
        weight_decay: group.weight_decay,
        decoupled,
        amsgrad: amsgrad != 0.0,
        maximize: maximize != 0.0,
    };
    let state = [group.slot(0), group.slot(1), group.slot(2)];
    settings.step(group.list(), state, (amsgrad != 0.0).then(|| group.slot(3)))
}
