//! Methods of [`Cx`] that are available at every moment: counters, variables, optimizers, other
//! hooks.

use tch::Device;

use super::Cx;
use crate::error::Result;
use crate::lifecycle::available;
use crate::model::vars::Vars;
use crate::moment::{AtOperation, CustomMoment, OnAllRanks};
use crate::moments::counters::{Counters, Plan};
use crate::optim::Optimizer;
use crate::phase::Phase;

/// # Position in the run
impl<P> Cx<P> {
    /// The current phase.
    #[must_use]
    pub fn phase(&self) -> Phase {
        self.run.at.place.phase
    }

    /// The counters of the loop.
    #[must_use]
    #[doc(alias = "epoch")]
    #[doc(alias = "global_step")]
    #[doc(alias = "batch_idx")]
    pub fn counters(&self) -> Counters {
        self.run.progress.counters
    }

    /// How much the run is planned to do.
    #[must_use]
    pub fn plan(&self) -> Plan {
        let run = self.as_run();
        Plan {
            batches: run.progress.batches,
            epochs: run.fit.plan.epochs,
            steps: run.fit.plan.planned_steps,
            accumulation: run.settings.accumulate_in(run.progress.counters.epoch),
            is_limited: run.settings.limit(run.at.place.phase).is_some(),
            validates: run.fit.plan.validates,
        }
    }

    /// Whether the optimizer steps at this batch: with
    /// [`accumulate`](crate::TrainerBuilder::accumulate), at the last batch of each accumulation
    /// window; otherwise, at every batch. Known from `before_pred` on; `false` earlier in the batch
    /// and outside of training.
    #[must_use]
    pub fn is_boundary(&self) -> bool {
        self.run.at.place.phase == Phase::Train && self.run.fit.window.ends_here()
    }

    /// Whether the hook is running within `O`, an operation of a custom lifecycle. Several custom
    /// operations can reach the same built-in point: `after_loss` fires in both halves of a GAN's
    /// step, for example.
    #[must_use]
    pub fn is_within<O: AtOperation + CustomMoment>(&self) -> bool {
        self.run.at.scopes().contains(&O::index())
    }

    /// Whether a `fit` will resume from a checkpoint if there is one (see
    /// [`resume`](crate::TrainerBuilder::resume)). While a `fit` is starting, this refers to that
    /// `fit`; at any other time, to the next one.
    #[must_use]
    pub fn is_resuming(&self) -> bool {
        self.run.checkpoints.resume.is_some()
    }

    /// Whether this run repeats a part of a recorded run (see [`replay`](crate::Trainer::replay)).
    /// In such a run, hooks must not write anything, and hooks with the key
    /// [`writes`](crate::language::writes) are not called.
    #[must_use]
    pub fn is_replay(&self) -> bool {
        self.run.is_replay()
    }

    /// Whether a signal cancels this entry point (see [`OnSignal`](crate::OnSignal)). If not,
    /// SIGINT and SIGTERM end the program at once, unless it handles them itself.
    #[must_use]
    pub fn handles_signals(&self) -> bool {
        self.run.cancellation().handles_signals()
    }

    /// Whether this run is a smoke test (see
    /// [`fast_dev_run`](crate::TrainerBuilder::fast_dev_run)).
    #[must_use]
    pub fn is_fast_dev_run(&self) -> bool {
        self.run.settings.is_fast_dev_run()
    }

    /// The number of times that the current fit has [rolled back](Cx::roll_back).
    #[must_use]
    pub fn roll_backs(&self) -> u64 {
        self.as_run().progress.roll_backs.len() as u64
    }
}

/// # The model and its optimizers
impl<P> Cx<P> {
    /// The variables of the task, by name. The handle does not borrow from the context, so a loop
    /// over it can call [`log`](Cx::log). Variables that are added in `setup` are included once
    /// `setup` is over.
    #[doc(alias = "named_parameters")]
    #[must_use]
    pub fn vars(&self) -> Vars {
        self.run.model.vars.clone()
    }

    /// The names of the variables whose values were changed between entry points: since the end of
    /// the last one or, in the first, since the trainer was built. [`load_weights`] changes them,
    /// and so does code of the program that writes to them, such as
    /// [`Lora::merge`](crate::hooks::Lora::merge) and tch's `VarStore::load`.
    ///
    /// A hook that keeps something derived from the weights, such as averages, drops at `setup`
    /// what it has derived from the old values of these variables.
    ///
    /// [`load_weights`]: crate::Trainer::load_weights
    pub fn changed_vars(&self) -> impl Iterator<Item = &str> {
        self.run.model.values.changed.iter().map(String::as_str)
    }

    /// Returns the names of the variables that contain NaN or infinite values, or whose average
    /// does: see [`Saved::set_average`](crate::checkpoint::Saved::set_average). Infinite values
    /// that a buffer already contained when the trainer was built, or when weights were loaded, do
    /// not count. Reads every variable, and waits for the device.
    ///
    /// # Errors
    ///
    /// Returns an error if the state of a hook cannot be read, or if libtorch fails.
    pub fn not_finite_vars(&self) -> Result<Vec<String>> {
        self.run.model.not_finite_with(&self.run.hooks.averages(&self.run.model.vars)?)
    }

    /// The device of the task's variables.
    #[must_use]
    pub fn device(&self) -> Device {
        self.run.model.device
    }

    /// Whether the task provides the prediction and the target for [metrics](crate::metrics),
    /// through [`Task::metric_inputs`](crate::Task::metric_inputs). `false` while one of the task's
    /// own hooks is running, because [`metric_inputs`](Cx::metric_inputs) then returns an error.
    #[must_use]
    pub fn has_metric_inputs(&self) -> bool {
        self.run.step.has_metric_inputs(self.run.hooks.task())
    }

    /// The current optimizer: if there are several, the one in use or, between steps, the one used
    /// most recently.
    ///
    /// # Errors
    ///
    /// Returns an error if the trainer was built without an optimizer.
    pub fn optimizer(&self) -> Result<&dyn Optimizer> {
        self.run.model.optimizers.current()
    }

    /// Mutable access to the current [`optimizer`](Cx::optimizer).
    ///
    #[doc = available!(OnAllRanks)]
    ///
    /// # Errors
    ///
    /// Returns an error if the trainer was built without an optimizer.
    pub fn optimizer_mut(&mut self) -> Result<&mut dyn Optimizer>
    where
        P: OnAllRanks,
    {
        self.run.model.optimizers.current_mut()
    }

    /// The learning rates used by the last optimizer step, one per parameter group; empty before
    /// the first step. A schedule may already have set the rates of the next step, which the
    /// [`optimizer`](Cx::optimizer) holds.
    #[must_use]
    pub fn lrs(&self) -> &[f64] {
        self.run.model.optimizers.used_lrs()
    }

    /// The name of the part of the model that the current [`optimizer`](Cx::optimizer) updates;
    /// empty if it updates the entire model.
    #[must_use]
    pub fn part(&self) -> &str {
        self.run.model.optimizers.current_name()
    }

    /// The names of the parts of the model that have an optimizer, in the order in which they were
    /// registered. The name is empty for an optimizer of the entire model.
    pub fn parts(&self) -> impl Iterator<Item = &str> {
        self.run.model.optimizers.names()
    }

    /// The optimizer of a part of the model (see
    /// [`optimizer_of`](crate::TrainerBuilder::optimizer_of)).
    ///
    /// # Errors
    ///
    /// Returns an error if no optimizer is registered for `part`; the message lists the parts that
    /// have one.
    pub fn optimizer_of(&self, part: &str) -> Result<&dyn Optimizer> {
        self.run.model.optimizers.for_part(part)
    }

    /// Mutable access to the optimizer of a part of the model; see
    /// [`optimizer_of`](Cx::optimizer_of).
    ///
    #[doc = available!(OnAllRanks)]
    ///
    /// # Errors
    ///
    /// Returns an error if no optimizer is registered for `part`.
    pub fn optimizer_of_mut(&mut self, part: &str) -> Result<&mut dyn Optimizer>
    where
        P: OnAllRanks,
    {
        self.run.model.optimizers.for_part_mut(part)
    }

    /// The number of steps taken by the optimizer of a part of the model.
    /// [`optimizer_steps`](Counters::optimizer_steps) counts the steps of all optimizers together.
    ///
    /// # Errors
    ///
    /// Returns an error if no optimizer is registered for `part`.
    pub fn steps_of(&self, part: &str) -> Result<u64> {
        self.run.model.optimizers.steps_of(part)
    }
}

/// # The optimizer step
impl<P> Cx<P> {
    /// The number of the optimizer step that is being taken or was taken last, from 1. It is the
    /// [`optimizer_steps`](Counters::optimizer_steps) after this step, so optimizers that take
    /// turns in a batch have the same number.
    #[must_use]
    pub fn step_number(&self) -> u64 {
        self.run.step.step_number
    }
}

/// # Other hooks
impl<P> Cx<P> {
    /// Returns another hook of this trainer by type: the first hook value of type `H` that is not
    /// currently running.
    ///
    /// # Errors
    ///
    /// Returns an error if the trainer has no hook of type `H`, or if all of them are running.
    pub fn hook<H: Send + 'static>(&self) -> Result<&H> {
        self.run.hooks.value()
    }

    /// Mutable access to another hook of this trainer; see [`hook`](Cx::hook).
    ///
    #[doc = available!(OnAllRanks)]
    ///
    /// # Errors
    ///
    /// Returns an error if the trainer has no hook of type `H`, or if all of them are running.
    pub fn hook_mut<H: Send + 'static>(&mut self) -> Result<&mut H>
    where
        P: OnAllRanks,
    {
        self.run.hooks.value_mut()
    }

    /// Every hook of type `H` that is not currently running, in the order in which they were added.
    pub fn hooks<H: Send + 'static>(&self) -> impl Iterator<Item = &H> {
        self.run.hooks.values()
    }
}
