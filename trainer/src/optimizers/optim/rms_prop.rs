//! RMSprop.

use super::ParamGroup;
use super::algorithm::{Algorithm, Setting, StateSlot};
use super::optimizer_core::{OptimizerCore, optimizer};
use crate::error::Result;
use crate::libtorch;

/// The RMSprop optimizer (Tieleman and Hinton, *Neural Networks for Machine Learning*, lecture 6.5,
/// 2012), with optional momentum and Graves's centered variant (*Generating Sequences With
/// Recurrent Neural Networks*, 2013). It computes the same updates as `torch.optim.RMSprop`.
///
/// Use this when you reproduce a result obtained with RMSprop, as for many recurrent networks.
///
/// ```
/// use trainer::optim::RmsProp;
///
/// let optimizer = RmsProp::new(1e-3).alpha(0.9).momentum(0.9);
/// ```
#[derive(Debug)]
pub struct RmsProp(OptimizerCore);

static ALGORITHM: Algorithm = Algorithm {
    name: "RmsProp",
    settings: &[
        Setting::fraction("alpha", 0.99),
        Setting::at_least("eps", 0.0, 1e-8),
        Setting::at_least("momentum", 0.0, 0.0),
        Setting::flag("centered", false),
        Setting::flag("maximize", false),
    ],
    state: &[
        StateSlot::elements("square_avg"),
        StateSlot::elements("grad_avg").only_with("centered"),
        StateSlot::elements("momentum_buffer").only_with("momentum"),
    ],
    refuses: |_| None,
    step,
};

impl RmsProp {
    /// Creates the optimizer with this learning rate, an alpha of 0.99, an eps of 1e-8, no momentum
    /// and no weight decay.
    #[must_use]
    pub fn new(lr: f64) -> Self {
        RmsProp(OptimizerCore::new(&ALGORITHM, lr, 0.0))
    }

    /// Sets the decay rate of the running mean of squared gradients. Defaults to 0.99.
    #[must_use]
    pub fn alpha(self, alpha: f64) -> Self {
        RmsProp(self.0.with("alpha", alpha))
    }

    /// Sets the term added to the denominator for numerical stability. Defaults to 1e-8.
    #[must_use]
    pub fn eps(self, eps: f64) -> Self {
        RmsProp(self.0.with("eps", eps))
    }

    /// Sets the momentum. Defaults to 0.
    #[must_use]
    pub fn momentum(self, momentum: f64) -> Self {
        RmsProp(self.0.with("momentum", momentum))
    }

    /// Normalizes the gradient by its running standard deviation instead of its root mean square.
    /// Off by default. A variance that rounding makes negative, for which PyTorch's weights become
    /// NaN, counts as 0.
    #[must_use]
    pub fn centered(self, centered: bool) -> Self {
        RmsProp(self.0.with_flag("centered", centered))
    }

    /// Maximizes the objective instead of minimizing it. Off by default.
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
    libtorch::rms_prop(
        &settings,
        group.list(),
        group.slot(0),
        (centered != 0.0).then(|| group.slot(1)),
        (momentum != 0.0).then(|| group.slot(2)),
    )
}

optimizer!(RmsProp, "Sets the weight decay: an L2 penalty, added to the gradient. Defaults to 0.");
