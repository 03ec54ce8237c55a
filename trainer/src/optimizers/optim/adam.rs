//! Adam, and Adam with decoupled weight decay.

use super::ParamGroup;
use super::algorithm::{Algorithm, Setting, StateSlot};
use super::optimizer_core::{OptimizerCore, optimizer};
use crate::error::Result;
use crate::libtorch;

/// The Adam optimizer (Kingma and Ba, *Adam: A Method for Stochastic Optimization*, 2015), which
/// computes the same updates as `torch.optim.Adam`.
///
/// Use this when you reproduce a result obtained with Adam. Otherwise, use [`AdamW`] if you want
/// weight decay, because Adam adds the weight decay to the gradient.
///
/// ```
/// use trainer::optim::{Adam, Group};
///
/// let optimizer = Adam::new(1e-3)
///     .betas(0.9, 0.99)
///     .group("head.*", Group::new().lr(1e-2)); // the parameters of one part
/// ```
#[derive(Debug)]
pub struct Adam(OptimizerCore);

/// The AdamW optimizer: Adam with decoupled weight decay (Loshchilov and Hutter, *Decoupled Weight
/// Decay Regularization*, 2019). It computes the same updates as `torch.optim.AdamW`.
///
/// Use this when you start with a new model, or train a transformer.
///
/// ```
/// use trainer::optim::{AdamW, Group};
///
/// let optimizer = AdamW::new(3e-4)
///     .betas(0.9, 0.95)
///     .weight_decay(0.1)
///     .group("*.bias", Group::new().weight_decay(0.0));
/// ```
#[derive(Debug)]
pub struct AdamW(OptimizerCore);

static ADAM: Algorithm = algorithm("Adam", |group| step(group, false));
static ADAMW: Algorithm = algorithm("AdamW", |group| step(group, true));

const fn algorithm(name: &'static str, step: fn(&ParamGroup) -> Result<()>) -> Algorithm {
    const SETTINGS: &[Setting] = &[
        Setting::fraction("beta1", 0.9),
        Setting::fraction("beta2", 0.999),
        Setting::at_least("eps", 0.0, 1e-8),
        Setting::flag("amsgrad", false),
        Setting::flag("maximize", false),
    ];
    const STATE: &[StateSlot] = &[
        StateSlot::elements("exp_avg"),
        StateSlot::elements("exp_avg_sq"),
        StateSlot::steps(),
        StateSlot::elements("max_exp_avg_sq").only_with("amsgrad"),
    ];
    Algorithm { name, settings: SETTINGS, state: STATE, refuses: |_| None, step }
}

macro_rules! adam {
    ($name:ident, $algorithm:ident, $decay:literal, $new:literal) => {
        impl $name {
            #[doc = $new]
            #[must_use]
            pub fn new(lr: f64) -> Self {
                $name(OptimizerCore::new(&$algorithm, lr, $decay))
            }

            /// Sets the decay rates of the running means of the gradient and of its square.
            /// Defaults to 0.9 and 0.999.
            #[must_use]
            pub fn betas(self, beta1: f64, beta2: f64) -> Self {
                $name(self.0.with("beta1", beta1).with("beta2", beta2))
            }

            /// Sets the term added to the denominator for numerical stability. Defaults to 1e-8.
            #[must_use]
            pub fn eps(self, eps: f64) -> Self {
                $name(self.0.with("eps", eps))
            }

            /// Enables AMSGrad, which uses the maximum so far of the running mean of squared
            /// gradients (Reddi et al., *On the Convergence of Adam and Beyond*, 2018). Off by
            /// default.
            #[must_use]
            pub fn amsgrad(self, amsgrad: bool) -> Self {
                $name(self.0.with_flag("amsgrad", amsgrad))
            }

            /// Maximizes the objective instead of minimizing it. Off by default.
            #[must_use]
            pub fn maximize(self, maximize: bool) -> Self {
                $name(self.0.with_flag("maximize", maximize))
            }
        }
    };
}

adam!(
    Adam,
    ADAM,
    0.0,
    "Creates the optimizer with this learning rate, betas of 0.9 and 0.999, eps 1e-8 and no weight decay."
);
adam!(
    AdamW,
    ADAMW,
    0.01,
    "Creates the optimizer with this learning rate, betas of 0.9 and 0.999, eps 1e-8 and weight decay 0.01."
);
optimizer!(Adam, "Sets the weight decay: an L2 penalty, added to the gradient. Defaults to 0.");
optimizer!(AdamW, "Sets the decoupled weight decay. Defaults to 0.01.");

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
    libtorch::adam(&settings, group.list(), state, (amsgrad != 0.0).then(|| group.slot(3)))
}
