//! Statistics of activations.

use super::refused;
use crate::checkpoint::{SettingList, Settings};
use crate::modules::Patterns;
use crate::prelude::own::*;

/// Logs the mean and standard deviation of module outputs in training, and the fraction of their
/// elements that are zero.
///
/// Use this when a deep network does not learn and you suspect its initialization.
///
/// The metrics are `train/activation/<module>/mean`, `…/std` and `…/zeros`. They are logged for
/// each call of a module in an observed batch, and averaged over the epoch. A standard deviation
/// that shrinks or grows from layer to layer means that the initialization does not fit the network
/// (Glorot and Bengio, *Understanding the difficulty of training deep feedforward neural networks*,
/// 2010).
///
/// ```
/// use trainer::hooks::ActivationStats;
/// use trainer::modules;
/// use trainer::prelude::*;
///
/// let vs = nn::VarStore::new(Device::Cpu);
/// let path = vs.root() / "encoder";
/// let net = modules::seq(&path)
///     .add(nn::linear(&path / 0, 4, 8, Default::default()))
///     .add_fn(Tensor::relu)
///     .add(nn::linear(&path / 2, 8, 2, Default::default()));
/// let task = Supervised::new(vs, net, |logits, labels| logits.cross_entropy_for_logits(labels));
/// let mut trainer = Trainer::builder(task)
///     .optimizer(AdamW::new(1e-2))
///     .hook(ActivationStats::new("encoder.*").every(2))
///     .build()?;
///
/// let inputs = Tensor::randn([64, 4], (Kind::Float, Device::Cpu));
/// let labels = inputs.select(1, 0).gt(0.0).to_kind(Kind::Int64);
/// let summary = trainer.fit(&mut InMemory::new((inputs, labels))?.batch_size(16), None)?;
/// assert!(summary.metrics["train/activation/encoder.1/zeros"] > 0.0);
/// # Ok::<(), trainer::Error>(())
/// ```
#[derive(Debug)]
pub struct ActivationStats {
    modules: Patterns,
    every: u64,
}

impl ActivationStats {
    /// Observes the modules with these names: a pattern such as `"encoder.*"`, several patterns, or
    /// [`Patterns`].
    #[must_use]
    pub fn new(modules: impl Into<Patterns>) -> Self {
        ActivationStats { modules: modules.into(), every: 1 }
    }

    /// Observes every `n`-th training batch, starting with the first. Defaults to 1.
    #[must_use]
    pub fn every(mut self, n: u64) -> Self {
        self.every = n;
        self
    }
}

#[hook(only = train, settings, may_fail)]
impl ActivationStats {
    /// Logs the statistics of one output.
    #[hook(of = self.modules)]
    fn after_module_forward(&mut self, cx: &Cx<AfterModuleForward>) {
        if !cx.counters().batches_seen.is_multiple_of(self.every) {
            return;
        }
        let _no_grad = tch::no_grad_guard();
        let output = cx.output().detach();
        // The result of a reduction has the dtype of the output.
        let output = if output.kind() == Kind::Double { output } else { output.to_kind(Kind::Float) };
        let zeros = output.eq(0.0).to_kind(Kind::Float).mean(Kind::Float);
        let name = format!("activation/{}", cx.module());
        cx.log(format!("{name}/mean"), output.mean(None));
        cx.log(format!("{name}/std"), output.std(false));
        cx.log(format!("{name}/zeros"), zeros);
    }
}

/// Lists no settings, because the hook only observes.
#[diagnostic::do_not_recommend]
impl Settings for ActivationStats {
    fn settings(&self) -> SettingList {
        SettingList::new()
    }

    fn mistakes(&self) -> Vec<String> {
        refused([(self.every == 0, "`.every(0)`: expected at least 1".to_owned())])
    }
}
