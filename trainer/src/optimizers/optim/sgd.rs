//! Stochastic gradient descent.

use super::ParamGroup;
use super::algorithm::{Algorithm, Setting, StateSlot};
use super::optimizer_core::{OptimizerCore, optimizer};
use crate::error::Result;
use crate::libtorch;

/// Stochastic gradient descent with optional momentum (Polyak 1964), Nesterov momentum (Sutskever
/// et al. 2013) and weight decay. It computes the same updates as `torch.optim.SGD`.
///
/// Use this, with momentum, when you train a convolutional network with a tuned schedule, or when
/// the state of other optimizers needs too much memory.
///
/// ```
/// use trainer::optim::{Group, Sgd};
///
/// let optimizer = Sgd::new(0.1)
///     .momentum(0.9)
///     .nesterov(true)
///     .weight_decay(5e-4)
///     .group("*.bias", Group::new().weight_decay(0.0));
/// ```
#[derive(Debug)]
pub struct Sgd(OptimizerCore);

static ALGORITHM: Algorithm = Algorithm {
    name: "Sgd",
    settings: &[
        Setting::at_least("momentum", 0.0, 0.0),
        Setting::fraction("dampening", 0.0),
        Setting::flag("nesterov", false),
        Setting::flag("maximize", false),
    ],
    state: &[
        StateSlot::elements("momentum_buffer").only_with("momentum"),
        // Steps are counted because the first one is not dampened. The count is on the CPU, so
        // reading it never synchronizes.
        StateSlot::steps_on_cpu().only_with("momentum"),
    ],
    refuses,
    step,
};

impl Sgd {
    /// Creates the optimizer with this learning rate, without momentum or weight decay.
    #[must_use]
    pub fn new(lr: f64) -> Self {
        Sgd(OptimizerCore::new(&ALGORITHM, lr, 0.0))
    }

    /// Sets the momentum. Defaults to 0.
    #[must_use]
    pub fn momentum(self, momentum: f64) -> Self {
        Sgd(self.0.with("momentum", momentum))
    }

    /// Sets the dampening of the momentum: each gradient except the first enters the momentum
    /// multiplied by `1 - dampening`. Defaults to 0.
    #[must_use]
    pub fn dampening(self, dampening: f64) -> Self {
        Sgd(self.0.with("dampening", dampening))
    }

    /// Uses Nesterov momentum, which requires [`momentum`](Sgd::momentum) without
    /// [`dampening`](Sgd::dampening). Off by default.
    #[must_use]
    pub fn nesterov(self, nesterov: bool) -> Self {
        Sgd(self.0.with_flag("nesterov", nesterov))
    }

    /// Maximizes the objective instead of minimizing it. Off by default.
    #[must_use]
    pub fn maximize(self, maximize: bool) -> Self {
        Sgd(self.0.with_flag("maximize", maximize))
    }
}

fn refuses(group: &ParamGroup) -> Option<String> {
    let [momentum, dampening, nesterov, _] = group.values();
    let cannot = nesterov != 0.0 && (momentum == 0.0 || dampening != 0.0);
    let hint =
        "Nesterov momentum in `Sgd` requires momentum without dampening: `.momentum(0.9).nesterov(true)`";
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
    libtorch::sgd(&settings, group.list(), (momentum != 0.0).then(|| [group.slot(0), group.slot(1)]))
}

optimizer!(Sgd, "Sets the weight decay: an L2 penalty, added to the gradient. Defaults to 0.");
