//! [`Trainer`]: built once, with its tables frozen, then run.

mod active;
mod builder;
mod entry;
mod fit;
mod limit;
mod options;
mod pass;
mod plan;
mod settings;
pub(crate) mod step;
mod variables;

use std::fmt;
use std::marker::PhantomData;

pub use builder::TrainerBuilder;
pub(crate) use limit::ends_share;
pub use limit::{Every, Limit};
pub(crate) use plan::{FitState, Stage};
pub(crate) use settings::Settings;

use crate::counters::Counters;
use crate::data::Loader;
use crate::error::Result;
use crate::history::History;
use crate::hook::HookTable;
use crate::lifecycle::{self, at};
use crate::metrics::Metrics;
use crate::moment::Moment;
use crate::optim::Optimizer;
use crate::phase::Phase;
use crate::run::Run;
use crate::task::Task;
use crate::vars::Vars;

/// Trains and evaluates a task.
pub struct Trainer<T> {
    pub(crate) run: Run,
    task: PhantomData<fn() -> T>,
}

/// What an entry of the trainer gives back.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Summary {
    /// The counters at the end.
    pub counters: Counters,
    /// What this entry measured last, by `phase/name`: `summary.metrics["valid/loss"]`.
    pub metrics: Metrics,
    /// All that this entry measured, over time.
    pub history: History,
    /// Why it stopped early, if a hook asked for it, or the time was up.
    pub stopped: Option<String>,
}

impl Summary {
    /// What an entry returned that was over when a checkpoint was written.
    pub(crate) fn replayed(step: Counters, metrics: Metrics, stopped: Option<String>) -> Self {
        let mut history = History::default();
        history.record(step, &metrics);
        Summary { counters: step, metrics, history, stopped }
    }
}

impl<T: Task> Trainer<T> {
    /// Begins to build a trainer of this task.
    pub fn builder(task: T) -> TrainerBuilder<T> {
        TrainerBuilder::new(task)
    }

    /// Trains for as long as the builder was told, and validates after each epoch if there is data for it.
    ///
    /// A second call trains as much more: its counters go on, and it begins with the next epoch, also after an error. What was left of
    /// an epoch that broke off is not made up for.
    ///
    /// # Errors
    ///
    /// Those of the task, the loaders and the hooks; a trainer without an optimizer; a loader without
    /// a batch; [`Error::Cancelled`](crate::Error::Cancelled). `after_cancel` or `after_error`, and `teardown`, have run by then.
    ///
    /// # Panics
    ///
    /// When the task or a hook does, and most methods of `tch` panic where libtorch refuses (their `f_…` twins
    /// return errors). The panic goes on after `after_error` and `teardown`; the line after its message says
    /// where it was, and on what batch.
    ///
    /// In a program built with `panic = "abort"` a panic ends the process at once: no hook runs any more, neither `after_error` nor
    /// `teardown`. Checkpoints on disk stay valid, because each is written atomically, and the run resumes from the newest.
    pub fn fit(
        &mut self,
        train: &mut dyn Loader<T::Batch>,
        valid: Option<&mut dyn Loader<T::Batch>>,
    ) -> Result<Summary> {
        entry::enter(&mut self.run, Phase::Train, lifecycle::Fit::INFO, |run| {
            fit::fit::<T>(run, train, valid)
        })
    }

    /// One pass over validation data, outside of training.
    ///
    /// # Errors
    ///
    /// As for [`fit`](Trainer::fit).
    pub fn validate(&mut self, valid: &mut dyn Loader<T::Batch>) -> Result<Summary> {
        entry::enter(&mut self.run, Phase::Valid, lifecycle::Valid::INFO, |run| {
            fit::evaluate::<T, at::valid>(run, valid, None)
        })
    }

    /// One pass over test data.
    ///
    /// # Errors
    ///
    /// As for [`fit`](Trainer::fit).
    pub fn test(&mut self, test: &mut dyn Loader<T::Batch>) -> Result<Summary> {
        entry::enter(&mut self.run, Phase::Test, lifecycle::Test::INFO, |run| {
            fit::evaluate::<T, at::test>(run, test, None)
        })
    }

    /// One pass over data without a loss: the prediction of each batch, in their order.
    ///
    /// They all stay in memory, on the device of the task; [`predict_each`](Trainer::predict_each) hands them on instead. A batch
    /// that a hook around `predict_step` leaves out has none.
    ///
    /// # Errors
    ///
    /// As for [`fit`](Trainer::fit).
    pub fn predict(&mut self, data: &mut dyn Loader<T::Batch>) -> Result<Vec<T::Pred>> {
        let mut preds = Vec::new();
        self.predict_each(data, |pred| {
            preds.push(pred);
            Ok(())
        })?;
        Ok(preds)
    }

    /// As [`predict`](Trainer::predict), with each prediction handed to this as soon as the hooks have seen it.
    ///
    /// # Errors
    ///
    /// Those of `sink`, and as for [`fit`](Trainer::fit).
    pub fn predict_each(
        &mut self,
        data: &mut dyn Loader<T::Batch>,
        mut sink: impl FnMut(T::Pred) -> Result<()>,
    ) -> Result<Summary> {
        entry::enter(&mut self.run, Phase::Predict, lifecycle::Predict::INFO, |run| {
            fit::predict::<T>(run, data, &mut sink)
        })
    }

    /// What runs when: read from the very table that is dispatched.
    #[must_use]
    pub fn describe_hooks(&self) -> HookTable {
        HookTable::of(&self.run.hooks.table)
    }

    /// The first hook of this type.
    #[must_use]
    pub fn hook<H: Send + 'static>(&self) -> Option<&H> {
        self.run.values().next()
    }

    /// The first hook of this type, to be changed.
    pub fn hook_mut<H: Send + 'static>(&mut self) -> Option<&mut H> {
        self.run.value_mut()
    }

    /// Every hook of this type, in the order in which they were added.
    pub fn hooks<H: Send + 'static>(&self) -> impl Iterator<Item = &H> {
        self.run.values()
    }

    /// The task.
    #[must_use]
    pub fn task(&self) -> &T {
        step::task(&self.run)
    }

    /// The task, to be changed.
    pub fn task_mut(&mut self) -> &mut T {
        step::task_mut(&mut self.run)
    }

    /// The variables of the task, by name.
    #[must_use]
    pub fn vars(&self) -> &Vars {
        &self.run.model.vars
    }

    /// The optimizer, if the builder was given one; of more than one the one that stepped last.
    #[must_use]
    pub fn optimizer(&self) -> Option<&dyn Optimizer> {
        self.run.model.optimizers.get(None)
    }

    /// The optimizer, to be changed.
    pub fn optimizer_mut(&mut self) -> Option<&mut dyn Optimizer> {
        self.run.model.optimizers.current().ok()
    }

    /// The optimizer of a part of the model.
    #[must_use]
    pub fn optimizer_of(&self, part: &str) -> Option<&dyn Optimizer> {
        self.run.model.optimizers.get(Some(part))
    }

    /// The optimizer of a part of the model, to be changed.
    pub fn optimizer_of_mut(&mut self, part: &str) -> Option<&mut dyn Optimizer> {
        self.run.model.optimizers.for_part(part).ok()
    }

    /// Whether a checkpoint is to be [resumed](TrainerBuilder::resume) whose `fit` has not run yet. Until then the
    /// weights are those that the program has initialized.
    #[must_use]
    pub fn is_resuming(&self) -> bool {
        self.run.checkpoints.resume.is_some()
    }

    /// What the last entry measured, also if it ended with an error.
    #[must_use]
    pub fn history(&self) -> &History {
        &self.run.log.history
    }

    /// The counters.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.run.progress.counters
    }
}

impl<T> fmt::Debug for Trainer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trainer")
            .field("step", &self.run.progress.counters)
            .field("settings", &self.run.settings)
            .finish_non_exhaustive()
    }
}
