//! Learning-rate schedules.

use super::schedule_core::{Mode, Name, ScheduleCore};
use super::stages;
use crate::checkpoint::{SettingList, Settings};
use crate::prelude::*;

/// Sets the learning rate before each optimizer step: each parameter group gets its initial rate
/// times the factor of a [schedule](crate::schedule).
///
/// Use this when the learning rate depends on the step or the epoch. If it depends on a metric, use
/// [`ReduceOnPlateau`](super::ReduceOnPlateau); for another hyperparameter, use
/// [`HyperparameterSchedule`](super::HyperparameterSchedule).
///
/// ```
/// use trainer::hooks::LrSchedule;
/// use trainer::prelude::*;
/// use trainer::schedule::Cosine;
///
/// # fn main() -> Result<()> {
/// # let vs = nn::VarStore::new(Device::Cpu);
/// # let net = nn::linear(vs.root() / "fc", 4, 2, Default::default());
/// # let task = Supervised::new(vs, net, |logits, labels| logits.cross_entropy_for_logits(labels));
/// let trainer = Trainer::builder(task)
///     .optimizer(AdamW::new(1e-3)) // the highest rate
///     .epochs(10)
///     // Rises for 500 steps, then falls to 0 over the rest of the 10 epochs.
///     .hook(LrSchedule::new(Cosine::to(0.0).warm_up(500)))
///     .build()?;
/// # Ok(())
/// # }
/// ```
///
/// - **Steps**: the schedule is evaluated at [`optimizer_steps`](Counters::optimizer_steps), the
///   number of steps taken before over all fits, excluding those that a hook skipped. With
///   [`by_epoch`](LrSchedule::by_epoch), it is evaluated at the epoch.
/// - **Length of the run**: [`Cx::planned_steps`], or [`Cx::planned_epochs`] with `by_epoch`. It
///   must be known for a schedule over the whole run: a task that takes several steps for a batch
///   says how many with [`steps_per_batch`](Task::steps_per_batch). A second `fit`, or a resume
///   with more epochs, makes the run longer. A schedule over the whole run then continues at the
///   current position within the longer run, and a warning says how this changes the rate.
/// - **Several optimizers** are all scheduled by the steps of the run, even if one of them steps
///   less often; [`part`](LrSchedule::part) restricts the schedule to one of them.
/// - **Several groups**: each group is scaled relative to its own rate;
///   [`group`](LrSchedule::group) restricts the schedule to some of them.
/// - **Changes by other hooks** are kept. If another hook, such as
///   [`ReduceOnPlateau`](super::ReduceOnPlateau) or a second `LrSchedule`, halves the rate within a
///   `fit`, all later rates are halved. If the rate was 0, or was changed between two fits, the new
///   rate becomes the initial rate of the group.
/// - **Invalid schedules**, such as one whose warm-up is longer than the run, are an error when
///   `fit` begins; an invalid factor is an error at the step for which the schedule returns it.
#[doc(alias("LearningRateScheduler", "lr_scheduler", "LRScheduler", "ParamScheduler"))]
#[derive(Debug)]
pub struct LrSchedule(ScheduleCore);

impl LrSchedule {
    /// Schedules the learning rate by optimizer steps, for every optimizer.
    #[must_use]
    pub fn new(schedule: impl Schedule) -> Self {
        LrSchedule(ScheduleCore::new(Name::Lr, Mode::Factor, schedule))
    }
}

super::schedule_core::schedule_options!(LrSchedule);

#[hook(in = stages::Schedules, state = self.0, settings, trial = false)]
impl LrSchedule {
    /// Records the initial learning rates, and returns an error if the schedule is invalid.
    fn before_fit(&mut self, cx: &Cx<BeforeFit>) -> Result<()> {
        self.0.begin_all(cx)
    }

    /// Sets the learning rates.
    fn before_opt_step(&mut self, cx: &mut Cx<BeforeOptStep>) -> Result<()> {
        self.0.set(cx)
    }

    /// Adopts changes that other hooks made to the rates since the last step.
    #[hook(only = train)]
    fn teardown(&mut self, cx: &Cx<Teardown>) -> Result<()> {
        self.0.follow(cx)
    }
}

#[diagnostic::do_not_recommend]
impl Settings for LrSchedule {
    fn settings(&self) -> SettingList {
        self.0.settings()
    }

    fn mistakes(&self) -> Vec<String> {
        self.0.schedule.mistakes()
    }
}
