//! Muon.

use super::ParamGroup;
use super::algorithm::{Algorithm, Setting, StateSlot};
use super::optimizer_core::{OptimizerCore, optimizer};
use crate::error::Result;
use crate::libtorch;

/// The Muon optimizer (Jordan et al., *Muon: An optimizer for hidden layers in neural networks*,
/// 2024), which computes the same updates as `torch.optim.Muon`. The update is the momentum,
/// orthogonalized by a few Newton–Schulz iterations.
///
/// Use this when most parameters of a model are weight matrices of hidden layers.
///
/// Muon is meant for the weight matrices of hidden layers. Biases and normalization layers need a
/// different optimizer, which Muon's author also recommends for embeddings and the last layer:
///
/// ```
/// use trainer::optim::{AdamW, Muon};
///
/// let optimizer = Muon::new(0.02)
///     .group("*.bias", AdamW::new(3e-4))
///     .group("head.*", AdamW::new(3e-4));
/// ```
#[derive(Debug)]
pub struct Muon(OptimizerCore);

static ALGORITHM: Algorithm = Algorithm {
    name: "Muon",
    settings: &[
        Setting::fraction("momentum", 0.95),
        Setting::flag("nesterov", true),
        Setting::whole("ns_steps", 1..100, 5.0),
        Setting::at_least("eps", 0.0, 1e-7),
        Setting::flag("match_rms_adamw", false),
        Setting::flag("full_precision", false),
        Setting::flag("maximize", false),
    ],
    state: &[StateSlot::elements("momentum_buffer")],
    refuses,
    step,
};

impl Muon {
    /// Creates the optimizer with this learning rate, Nesterov momentum of 0.95, 5 Newton–Schulz
    /// iterations and a weight decay of 0.1.
    #[must_use]
    pub fn new(lr: f64) -> Self {
        Muon(OptimizerCore::new(&ALGORITHM, lr, 0.1))
    }

    /// Sets the momentum: the decay rate of the running mean of the gradient. Defaults to 0.95.
    #[must_use]
    pub fn momentum(self, momentum: f64) -> Self {
        Muon(self.0.with("momentum", momentum))
    }

    /// Uses Nesterov momentum. On by default.
    #[must_use]
    pub fn nesterov(self, nesterov: bool) -> Self {
        Muon(self.0.with_flag("nesterov", nesterov))
    }

    /// Sets the number of Newton–Schulz iterations, from 1 to 99. Defaults to 5.
    #[must_use]
    pub fn ns_steps(self, steps: u32) -> Self {
        Muon(self.0.with("ns_steps", f64::from(steps)))
    }

    /// Sets the lower bound of the norm that each matrix is divided by. Defaults to 1e-7.
    #[must_use]
    pub fn eps(self, eps: f64) -> Self {
        Muon(self.0.with("eps", eps))
    }

    /// Scales the learning rate by `0.2 √max(rows, columns)` instead of Jordan's
    /// `√max(1, rows / columns)`. Updates then match the size of AdamW's, so AdamW's learning rate
    /// and weight decay can be reused (Liu et al., *Muon is Scalable for LLM Training*, 2025). Off
    /// by default.
    #[must_use]
    pub fn match_rms_adamw(self, match_rms_adamw: bool) -> Self {
        Muon(self.0.with_flag("match_rms_adamw", match_rms_adamw))
    }

    /// Runs the iterations in the dtype of the momentum instead of bf16. Results then agree between
    /// machines except for the last bits, at the cost of speed on hardware with bf16 units. Off by
    /// default.
    #[must_use]
    pub fn full_precision(self, full_precision: bool) -> Self {
        Muon(self.0.with_flag("full_precision", full_precision))
    }

    /// Maximizes the objective instead of minimizing it. Off by default.
    #[must_use]
    pub fn maximize(self, maximize: bool) -> Self {
        Muon(self.0.with_flag("maximize", maximize))
    }
}

fn refuses(group: &ParamGroup) -> Option<String> {
    let others: Vec<_> = group.names().zip(group.parameters()).filter(|(_, var)| var.dim() != 2).collect();
    let (first, _) = others.first()?;
    let pattern = first.rsplit_once('.').map_or((*first).to_owned(), |(_, last)| format!("*.{last}"));
    let listed: Vec<_> = others.iter().map(|(name, var)| format!("`{name}` {:?}", var.size())).collect();
    Some(format!(
        "Muon only updates 2-D parameters, but these are not: {}; assign them to another optimizer, \
         `.group(\"{pattern}\", AdamW::new(1e-3))`",
        listed.join(", ")
    ))
}

fn step(group: &ParamGroup) -> Result<()> {
    let [momentum, nesterov, ns_steps, eps, match_rms_adamw, full_precision, maximize] = group.values();
    let settings = libtorch::Muon {
        lr: group.lr,
        momentum,
        eps,
        weight_decay: group.weight_decay,
        ns_steps: ns_steps as i64,
        nesterov: nesterov != 0.0,
        full_precision: full_precision != 0.0,
        match_rms_adamw: match_rms_adamw != 0.0,
        maximize: maximize != 0.0,
    };
    libtorch::muon(&settings, group.list(), group.slot(0))
}

optimizer!(Muon, "Sets the decoupled weight decay. Defaults to 0.1.");
