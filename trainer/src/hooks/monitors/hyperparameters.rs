//! The learning rates and the other hyperparameters of the optimizers.

use std::collections::BTreeSet;

use super::{Interval, interval_settings};
use crate::error::did_you_mean;
use crate::prelude::own::*;
use crate::stages;

/// Logs the learning rate and every other hyperparameter of every parameter group, as the optimizer
/// step uses them: after [`HyperparameterSchedule`](super::super::HyperparameterSchedule) has set
/// them.
///
/// Use this when a schedule or a hook changes the learning rate, and you want to see it alongside
/// the loss.
///
/// The names are `train/hyperparameter/lr`, `…/weight_decay`, `…/beta1` and so on. With several
/// parameter groups, they contain the [name](crate::optim::ParamGroup::label) of the group:
/// `train/hyperparameter/*.bias/lr`. For the optimizer of a part of the model, the name of the part
/// is included: `train/hyperparameter/generator/lr`. Switches such as `frozen` are logged as 0 or
/// 1. The value of an epoch is the last one.
///
/// ```
/// use trainer::hooks::{HyperparameterMonitor, HyperparameterSchedule};
/// use trainer::prelude::*;
/// use trainer::schedule::Cosine;
///
/// # let vs = nn::VarStore::new(Device::Cpu);
/// # let net = nn::linear(vs.root() / "fc", 4, 2, Default::default());
/// # let task = Supervised::new(vs, net, |logits, labels| logits.cross_entropy_for_logits(labels));
/// let mut trainer = Trainer::builder(task)
///     .optimizer(AdamW::new(1e-2))
///     .hook(HyperparameterSchedule::lr(Cosine::to(0.0)))
///     .hook(HyperparameterMonitor::new().names(["lr", "weight_decay"]).every(1))
///     .build()?;
/// # let inputs = Tensor::randn([64, 4], (Kind::Float, Device::Cpu));
/// # let labels = inputs.select(1, 0).gt(0.0).to_kind(Kind::Int64);
/// let summary = trainer.fit(&mut InMemory::new((inputs, labels))?.batch_size(16), None)?;
/// assert!(summary.metrics["train/hyperparameter/lr"] < 1e-2);
/// # Ok::<(), trainer::Error>(())
/// ```
#[doc(alias = "LearningRateMonitor")]
#[derive(Debug, Default)]
pub struct HyperparameterMonitor {
    names: Vec<String>,
    interval: Interval,
}

impl HyperparameterMonitor {
    /// Creates a monitor of every hyperparameter.
    #[must_use]
    pub fn new() -> Self {
        HyperparameterMonitor::default()
    }

    /// Logs only the hyperparameters with these names. A name that no optimizer has is an error
    /// when `fit` begins. Defaults to all.
    #[must_use]
    pub fn names<S: Into<String>>(mut self, names: impl IntoIterator<Item = S>) -> Self {
        self.names = names.into_iter().map(Into::into).collect();
        self
    }

    /// Logs in every `n`-th step of each optimizer. Defaults to the steps after which a record is
    /// [due](Cx::is_record_due), which requires a logger.
    #[must_use]
    pub fn every(mut self, n: u64) -> Self {
        self.interval = Interval(Some(n));
        self
    }

    /// Returns an error if a setting is invalid.
    fn check<P: OnAllRanks>(&self, cx: &Cx<P>) -> Result<()> {
        let parts: Vec<String> = cx.parts().map(str::to_owned).collect();
        let mut known = BTreeSet::new();
        for part in parts {
            for group in cx.optimizer_of(&part)?.groups() {
                known.extend(group.settings().map(|(name, _)| name.to_owned()));
            }
        }
        match self.names.iter().find(|name| !known.contains(*name)) {
            None => Ok(()),
            Some(name) => Err(Error::fatal(format!(
                "`.names([\"{name}\"])`: no optimizer has this hyperparameter{}",
                did_you_mean(name, known.iter().map(String::as_str))
            ))),
        }
    }

    fn shows(&self, name: &str) -> bool {
        self.names.is_empty() || self.names.iter().any(|own| own == name)
    }
}

#[hook(in = stages::Monitors, only = train, single, settings, may_fail)]
impl HyperparameterMonitor {
    /// Returns an error if a setting is invalid.
    fn before_fit(&mut self, cx: &Cx<BeforeFit>) -> Result<()> {
        self.check(cx)
    }

    /// Repeats the check of `before_fit` for a resumed fit.
    fn after_load_checkpoint(&mut self, cx: &Cx<AfterLoadCheckpoint>) -> Result<()> {
        self.check(cx)
    }

    /// Logs the hyperparameters of the step.
    fn before_opt_step(&mut self, cx: &Cx<BeforeOptStep>) -> Result<()> {
        if !self.interval.is_due_before_step(cx) {
            return Ok(());
        }
        let part = if cx.part().is_empty() { String::new() } else { format!("{}/", cx.part()) };
        let mut values = Vec::new();
        let groups = cx.optimizer()?.groups();
        for group in groups {
            let label = if groups.len() == 1 { String::new() } else { group.label() + "/" };
            let settings = group.settings().filter(|(name, _)| self.shows(name));
            values
                .extend(settings.map(|(name, value)| (format!("hyperparameter/{part}{label}{name}"), value)));
        }
        for (name, value) in values {
            cx.log_as(name, value, Reduce::Last);
        }
        Ok(())
    }
}

interval_settings!(HyperparameterMonitor);
