//! Schedules of hyperparameters other than the learning rate.

use super::schedule_core::{Mode, Name, ScheduleCore, schedule_options};
use super::stages;
use crate::checkpoint::{SettingList, Settings};
use crate::prelude::*;

/// Sets a hyperparameter of the optimizers from a [schedule](crate::schedule), before each
/// optimizer step. The hyperparameter is the momentum, one of the betas, the weight decay, or any
/// other, selected [by name](crate::optim::ParamGroup::set).
///
/// Use this when a hyperparameter other than the learning rate should change in the course of the
/// run. For the learning rate, use [`LrSchedule`](super::LrSchedule).
///
/// ```
/// use trainer::hooks::HyperparameterSchedule;
/// use trainer::prelude::*;
/// use trainer::schedule::{Cosine, Linear};
///
/// # fn main() -> Result<()> {
/// # let vs = nn::VarStore::new(Device::Cpu);
/// # let net = nn::linear(vs.root() / "fc", 4, 2, Default::default());
/// # let task = Supervised::new(vs, net, |logits, labels| logits.cross_entropy_for_logits(labels));
/// let trainer = Trainer::builder(task)
///     .optimizer(AdamW::new(1e-3).group("*.bias", trainer::optim::Group::new().weight_decay(0.0)))
///     .epochs(10)
///     // From 0.9 to 0.99 over the run.
///     .hook(HyperparameterSchedule::values("beta2", Linear::to(0.99).starting_at(0.9)))
///     // From 1 to 10 times the weight decay of the optimizer, except for the biases.
///     .hook(HyperparameterSchedule::factors("weight_decay", Cosine::to(10.0)).ungrouped())
///     .build()?;
/// # Ok(())
/// # }
/// ```
///
/// Steps, the length of the run and several optimizers are handled as in
/// [`LrSchedule`](super::LrSchedule). If another hook changes a hyperparameter within a `fit`,
/// [`factors`](HyperparameterSchedule::factors) scales the changed value from then on, while
/// [`values`](HyperparameterSchedule::values) replaces it.
///
/// A hyperparameter or a group that does not exist is an error when `fit` begins; a value that the
/// optimizer does not allow is an error at the step for which the schedule returns it.
#[doc(alias("ParamScheduler", "momentum_scheduler"))]
#[derive(Debug)]
pub struct HyperparameterSchedule(ScheduleCore);

impl HyperparameterSchedule {
    /// Sets the hyperparameter to the values that the schedule returns.
    #[must_use]
    pub fn values(name: impl Into<String>, schedule: impl Schedule) -> Self {
        HyperparameterSchedule(ScheduleCore::new(named(name.into()), Mode::Value, schedule))
    }

    /// Sets the hyperparameter of each group to its initial value times the factor that the
    /// schedule returns. For the learning rate, this is equivalent to
    /// [`LrSchedule`](super::LrSchedule).
    #[must_use]
    pub fn factors(name: impl Into<String>, schedule: impl Schedule) -> Self {
        HyperparameterSchedule(ScheduleCore::new(named(name.into()), Mode::Factor, schedule))
    }

    /// Sets `momentum`, or `beta1` for an optimizer without momentum, to the values that the
    /// schedule returns, for example [`OneCycle::momentum`](crate::schedule::OneCycle::momentum).
    #[must_use]
    pub fn momentum(schedule: impl Schedule) -> Self {
        HyperparameterSchedule(ScheduleCore::new(Name::Momentum, Mode::Value, schedule))
    }
}

/// Returns the hyperparameter with this name.
fn named(name: String) -> Name {
    if name == "lr" { Name::Lr } else { Name::Other(name) }
}

schedule_options!(HyperparameterSchedule);

#[hook(in = stages::Schedules, state = self.0, settings, trial = false)]
impl HyperparameterSchedule {
    /// Records the initial values, and returns an error if the schedule is invalid.
    fn before_fit(&mut self, cx: &Cx<BeforeFit>) -> Result<()> {
        self.0.begin_all(cx)
    }

    /// Sets the hyperparameter.
    fn before_opt_step(&mut self, cx: &mut Cx<BeforeOptStep>) -> Result<()> {
        self.0.set(cx)
    }

    /// Adopts changes that other hooks made to the hyperparameter since the last step.
    #[hook(only = train)]
    fn teardown(&mut self, cx: &Cx<Teardown>) -> Result<()> {
        self.0.follow(cx)
    }
}

#[diagnostic::do_not_recommend]
impl Settings for HyperparameterSchedule {
    fn settings(&self) -> SettingList {
        self.0.settings()
    }

    fn mistakes(&self) -> Vec<String> {
        self.0.schedule.mistakes()
    }
}
