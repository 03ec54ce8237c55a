//! Schedules for the settings of other hooks.

use std::any::type_name;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::hyperparameter_schedule::length_change;
use super::stages;
use crate::checkpoint::{SettingList, Settings};
use crate::prelude::own::*;
use crate::values::float::readable;

/// Sets a field of another hook from a [schedule](crate::schedule) before each training batch.
///
/// Use this when a setting of another hook should change in the course of the run.
///
/// ```standalone_crate
/// use trainer::hooks::FieldSchedule;
/// use trainer::prelude::*;
/// use trainer::schedule::Linear;
///
/// /// Adds noise to the inputs.
/// struct InputNoise {
///     scale: f64,
/// }
///
/// #[hook]
/// impl InputNoise {
///     #[hook(only = train)]
///     fn after_transfer(&mut self, cx: &mut Cx<AfterTransfer>) -> Result<()> {
///         let (inputs, _) = cx.batch_mut::<(Tensor, Tensor)>()?;
///         *inputs += inputs.randn_like() * self.scale;
///         Ok(())
///     }
/// }
///
/// fn noisy<T: Task>(builder: trainer::TrainerBuilder<T>) -> trainer::TrainerBuilder<T> {
///     builder
///         .hook(InputNoise { scale: 0.1 })
///         // From 0.1 to 0 in the first half of the run.
///         .hook(FieldSchedule::new(Linear::to(0.0).starting_at(0.1).over(0.5), |noise: &mut InputNoise, scale| {
///             noise.scale = scale;
///         }))
/// }
/// # fn main() {}
/// ```
///
/// The schedule is evaluated at the number of optimizer steps taken so far, and the length of the
/// run is [`Plan::steps`](crate::Plan::steps). With [`by_epoch`](FieldSchedule::by_epoch), the
/// epoch and [`Plan::epochs`](crate::Plan::epochs) are used instead. The output of the schedule is
/// the value of the field, not a factor. If the trainer has several hooks of type `H`, only the
/// first one is scheduled; if it has none, `fit` returns an error.
pub struct FieldSchedule<H> {
    schedule: Box<dyn Schedule>,
    set: Setter<H>,
    by_epoch: bool,
    position: Position,
    /// Whether the schedule was checked in this fit.
    is_checked: bool,
}

/// What the next fit needs of a [`FieldSchedule`], and a resumed one.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
struct Position {
    /// The value that was set last, which a resumed run sets again.
    last_set: Option<f64>,
    /// The length of the run for which the schedule was evaluated last.
    length: Option<u64>,
}

/// A function that sets a field of a hook.
type Setter<H> = Box<dyn FnMut(&mut H, f64) + Send>;

impl<H: Send + 'static> FieldSchedule<H> {
    /// Calls `set` with the hook of type `H` and each value of the schedule.
    #[must_use]
    pub fn new(schedule: impl Schedule, set: impl FnMut(&mut H, f64) + Send + 'static) -> Self {
        FieldSchedule {
            schedule: Box::new(schedule),
            set: Box::new(set),
            by_epoch: false,
            position: Position::default(),
            is_checked: false,
        }
    }

    /// Whether the schedule counts epochs instead of optimizer steps; the value is then constant
    /// within an epoch. Defaults to `false`.
    #[must_use]
    pub fn by_epoch(mut self, by_epoch: bool) -> Self {
        self.by_epoch = by_epoch;
        self
    }

    /// Returns the number of steps, or epochs, in the run, if it is known.
    fn planned<P>(&self, cx: &Cx<P>) -> Option<u64> {
        if self.by_epoch { cx.plan().epochs } else { cx.plan().steps }
    }

    /// Returns an error if the schedule is invalid. Warns if the value at this step, or in this
    /// epoch, differs because the length of the run has changed.
    fn check<P>(&mut self, at: u64, cx: &Cx<P>) -> Result<()> {
        self.is_checked = true;
        let now = self.planned(cx);
        if !cx.is_fast_dev_run() {
            self.schedule.check(now)?;
        }
        let before = std::mem::replace(&mut self.position.length, now);
        if let Some(change) = length_change(&*self.schedule, at, self.by_epoch, [before, now])
            && let Some(value) = self.position.last_set
        {
            let [before, now] = change.outputs.map(readable);
            cx.warn(format!(
                "the `FieldSchedule` of `{}` {}, so the field changes from {} to {now} instead of {before}; to prevent this, {}",
                type_name::<H>(),
                change.why,
                readable(value),
                change.advice
            ));
        }
        Ok(())
    }
}

#[hook(in = stages::Schedules, state = self.position, settings, trial = false)]
impl<H: Send + 'static> FieldSchedule<H> {
    /// Returns an error if there is no hook of type `H`.
    #[hook(only = train)]
    fn setup(&mut self, cx: &Cx<Setup>) -> Result<()> {
        self.is_checked = false;
        cx.hook::<H>().map(drop)
    }

    /// Returns an error if the schedule is invalid.
    fn before_fit(&mut self, cx: &Cx<BeforeFit>) -> Result<()> {
        let Counters { epoch, batches_seen, optimizer_steps, .. } = cx.counters();
        self.check(if self.by_epoch { epoch + u64::from(batches_seen > 0) } else { optimizer_steps }, cx)
    }

    /// Sets the field.
    #[hook(only = train)]
    fn before_step(&mut self, cx: &mut Cx<BeforeStep>) -> Result<()> {
        let counters = cx.counters();
        let step = if self.by_epoch { counters.epoch } else { counters.optimizer_steps };
        if !self.is_checked {
            self.check(step, cx)?; // a resumed fit has no `before_fit`
        }
        let value = self.schedule.factor(step, self.planned(cx))?;
        if !value.is_finite() {
            let unit = if self.by_epoch { "epoch" } else { "step" };
            return Err(Error::msg(format!(
                "the schedule returned the value {value:?} at {unit} {step}: expected a finite number"
            )));
        }
        (self.set)(cx.hook_mut()?, value);
        self.position.last_set = Some(value);
        Ok(())
    }

    /// Restores the value that the field had when the checkpoint was written.
    fn after_load_checkpoint(&mut self, cx: &mut Cx<AfterLoadCheckpoint>) -> Result<()> {
        if let Some(value) = self.position.last_set {
            (self.set)(cx.hook_mut()?, value);
        }
        Ok(())
    }
}

impl<H> fmt::Debug for FieldSchedule<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FieldSchedule")
            .field("by_epoch", &self.by_epoch)
            .field("position", &self.position)
            .finish_non_exhaustive()
    }
}

#[diagnostic::do_not_recommend]
impl<H> Settings for FieldSchedule<H> {
    fn settings(&self) -> SettingList {
        let FieldSchedule { schedule, set: _, by_epoch, position: _, is_checked: _ } = self;
        SettingList::new().with("by_epoch", by_epoch).with_all("schedule", schedule.settings())
    }

    fn mistakes(&self) -> Vec<String> {
        self.schedule.mistakes()
    }
}
