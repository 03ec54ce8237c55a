//! Muon.

use super::ParamGroup;
use super::base::{Base, optimizer};
use super::rule::{Rule, Setting, Slot, Valid};
use crate::error::Result;
use crate::libtorch;

/// Muon (Jordan et al., *Muon: An optimizer for hidden layers in neural networks*, 2024), by the formulas of
/// `torch.optim.Muon`: momentum, whose matrix is made orthogonal by a few steps of Newton and Schulz's iteration.
///
/// It is for the matrices of hidden layers. Biases and norms, and by its author's advice embeddings and the last layer,
/// are another optimizer's:
///
/// ```
/// use trainer::optim::{AdamW, Muon};
///
/// let optimizer = Muon::new(0.02)
///     .group("*.bias", AdamW::new(3e-4))
///     .group("head.*", AdamW::new(3e-4));
/// ```
#[derive(Debug)]
pub struct Muon(Base);

static RULE: Rule = Rule {
    name: "Muon",
    settings: &[
        Setting::fraction("momentum", 0.95),
        Setting::flag("nesterov", true),
        Setting { name: "ns_steps", valid: Valid::Whole(1..100), default: 5.0 },
        Setting::at_least_0("eps", 1e-7),
        Setting::flag("match_rms_adamw", false),
        Setting::flag("full_precision", false),
        Setting::flag("maximize", false),
    ],
    state: &[Slot::elements("momentum_buffer")],
    refuses,
    step,
};

impl Muon {
    /// With this learning rate, momentum of 0.95 in Nesterov's variant, 5 steps of the iteration and weight decay of 0.1.
    #[must_use]
    pub fn new(lr: f64) -> Self {
        Muon(Base::new(&RULE, lr, 0.1))
    }

    /// Momentum: the decay rate of the running mean.
    #[must_use]
    pub fn momentum(self, momentum: f64) -> Self {
        Muon(self.0.with("momentum", momentum))
    }

    /// Nesterov's momentum, on unless set.
    #[must_use]
    pub fn nesterov(self, nesterov: bool) -> Self {
        Muon(self.0.with_flag("nesterov", nesterov))
    }

    /// How many steps of the iteration.
    #[must_use]
    pub fn ns_steps(self, steps: u32) -> Self {
        Muon(self.0.with("ns_steps", f64::from(steps)))
    }

    /// The least norm that a matrix is divided by.
    #[must_use]
    pub fn eps(self, eps: f64) -> Self {
        Muon(self.0.with("eps", eps))
    }

    /// Multiplies the rate by `0.2 √max(rows, columns)`, so that updates are of AdamW's size and its rate and weight decay can be
    /// taken over (Liu et al., *Muon is Scalable for LLM Training*, 2025). Unless set it is `√max(1, rows / columns)`, as by Jordan.
    #[must_use]
    pub fn match_rms_adamw(self, match_rms_adamw: bool) -> Self {
        Muon(self.0.with_flag("match_rms_adamw", match_rms_adamw))
    }

    /// Runs the iteration in the kind of the momentum, not in bf16: the same on every machine but for the last bits, and slower
    /// where there are bf16 units.
    #[must_use]
    pub fn full_precision(self, full_precision: bool) -> Self {
        Muon(self.0.with_flag("full_precision", full_precision))
    }

    /// Makes the loss more, not less.
    #[must_use]
    pub fn maximize(self, maximize: bool) -> Self {
        Muon(self.0.with_flag("maximize", maximize))
    }
}

fn refuses(group: &ParamGroup) -> Option<String> {
    let others: Vec<_> = group.names().zip(group.parameters()).filter(|(_, it)| it.dim() != 2).collect();
    let (first, _) = others.first()?;
    let pattern = first.rsplit_once('.').map_or((*first).to_owned(), |(_, last)| format!("*.{last}"));
    let listed: Vec<_> = others.iter().map(|(name, it)| format!("`{name}` {:?}", it.size())).collect();
    Some(format!(
        "Muon updates matrices alone, and these are none: {}. Give them to another optimizer, \
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
    settings.step(group.list(), group.slot(0))
}

optimizer!(Muon, "Decoupled weight decay; 0.1 unless set.");
