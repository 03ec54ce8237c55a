//! [`Trainer`]: its entry points, and what a program reads from it.

use std::fmt;
use std::marker::PhantomData;

use super::builder::TrainerBuilder;
use super::tape;
use super::task::Task;
use super::{entry, erased, fit, validation};
use crate::data::Loader;
use crate::error::Result;
use crate::hook::HookTable;
use crate::io::terminal::print_line;
use crate::lifecycle::{self, at};
use crate::log::history::History;
use crate::log::history::Summary;
use crate::model::vars::Vars;
use crate::moment::Moment;
use crate::moments::counters::Counters;
use crate::optim::Optimizer;
use crate::phase::Phase;
use crate::run::Run;
use crate::run::dispatch::describe::{describe, requested};

/// Trains and evaluates a [`Task`].
///
/// ```
/// use trainer::prelude::*;
///
/// # let inputs = Tensor::randn([64, 4], (Kind::Float, Device::Cpu));
/// # let labels = inputs.select(1, 0).gt(0.0).to_kind(Kind::Int64);
/// # let (mut train, mut valid) = (InMemory::new((inputs.shallow_clone(), labels.shallow_clone()))?, InMemory::new((inputs, labels))?);
/// let vs = nn::VarStore::new(Device::Cpu);
/// let net = nn::linear(vs.root() / "fc", 4, 2, Default::default());
/// let task = Supervised::new(vs, net, |logits, labels| logits.cross_entropy_for_logits(labels));
/// let mut trainer = Trainer::builder(task).optimizer(AdamW::new(1e-2)).epochs(3).auto_device().build()?;
///
/// let summary = trainer.fit(&mut train, Some(&mut valid))?;
/// println!("{}", summary.metrics); // train/loss 0.6021  valid/loss 0.5712
/// # Ok::<(), trainer::Error>(())
/// ```
#[doc(alias("Learner", "Runner"))]
pub struct Trainer<T> {
    pub(crate) run: Run,
    pub(super) task: PhantomData<fn() -> T>,
}

/// # Building a trainer
impl<T: Task> Trainer<T> {
    /// Returns a builder for a trainer of this task.
    pub fn builder(task: T) -> TrainerBuilder<T> {
        TrainerBuilder::new(task)
    }
}

/// # Entry points
impl<T: Task> Trainer<T> {
    /// Trains for the length that the settings define. If there is validation data, also validates
    /// at the intervals of [`validate_every`](TrainerBuilder::validate_every). If the validation
    /// data is a [`NamedLoaders`], its loaders are validated one after the other.
    ///
    /// [`NamedLoaders`]: crate::data::NamedLoaders
    ///
    /// A further call trains for the same length again: the counters continue, and training begins
    /// with the next epoch. The remainder of an epoch that ended early or with an error is not
    /// trained.
    ///
    /// # Errors
    ///
    /// Returns an error if
    ///
    /// - the task, a loader or a hook fails;
    /// - the trainer has no optimizer;
    /// - a loader is empty;
    /// - the settings do not match the data;
    /// - a checkpoint or the run folder cannot be written or resumed from;
    /// - the run is cancelled ([`Error::Cancelled`](crate::Error::Cancelled)).
    ///
    /// When an error is returned, `after_cancel` or `after_error`, and then `teardown`, have
    /// already fired, unless the error occurred before `setup`.
    ///
    /// # Panics
    ///
    /// Panics if the task or a hook panics, as most methods of `tch` do on an error of libtorch
    /// (their `f_…` variants return the error). The panic continues after `after_error` and
    /// `teardown`; a line printed after its message names the moment, the epoch and the batch.
    ///
    /// In a program built with `panic = "abort"`, a panic ends the process immediately, without
    /// `after_error` and `teardown`. Checkpoints on disk stay valid, because each is written
    /// atomically, and the run resumes from the newest.
    pub fn fit(
        &mut self,
        train: &mut dyn Loader<T::Batch>,
        valid: Option<&mut dyn Loader<T::Batch>>,
    ) -> Result<Summary> {
        entry::enter(&mut self.run, Phase::Train, lifecycle::Fit::INFO, |run| {
            fit::fit::<T>(run, train, valid)
        })
    }

    /// Runs one pass over validation data, outside of training. If there are several [named
    /// loaders](crate::data::NamedLoaders), runs one pass over each.
    ///
    /// # Errors
    ///
    /// Returns an error for the same reasons as [`fit`](Trainer::fit), except a missing optimizer.
    #[doc(alias = "evaluate")]
    pub fn validate(&mut self, valid: &mut dyn Loader<T::Batch>) -> Result<Summary> {
        entry::enter(&mut self.run, Phase::Valid, lifecycle::Valid::INFO, |run| {
            validation::evaluate_each::<T, at::valid>(run, valid, &mut |_| Ok(()))
        })
    }

    /// Runs one pass over test data. If there are several [named
    /// loaders](crate::data::NamedLoaders), runs one pass over each.
    ///
    /// # Errors
    ///
    /// Returns an error for the same reasons as [`fit`](Trainer::fit), except a missing optimizer.
    #[doc(alias = "evaluate")]
    pub fn test(&mut self, test: &mut dyn Loader<T::Batch>) -> Result<Summary> {
        entry::enter(&mut self.run, Phase::Test, lifecycle::Test::INFO, |run| {
            validation::evaluate_each::<T, at::test>(run, test, &mut |_| Ok(()))
        })
    }

    /// Runs one pass over data without computing a loss, and returns the predictions in the order
    /// of the batches.
    ///
    /// All predictions stay in memory, on the device of the task;
    /// [`predict_each`](Trainer::predict_each) avoids this. If a hook skips the `predict_step` of a
    /// batch, there is no prediction for it.
    ///
    /// # Errors
    ///
    /// Returns an error for the same reasons as [`fit`](Trainer::fit), except a missing optimizer.
    pub fn predict(&mut self, data: &mut dyn Loader<T::Batch>) -> Result<Vec<T::Pred>> {
        let mut preds = Vec::new();
        self.predict_each(data, |pred| {
            preds.push(pred);
            Ok(())
        })?;
        Ok(preds)
    }

    /// Runs one pass over data like [`predict`](Trainer::predict), but passes each prediction to
    /// `sink` after the hooks at `after_predict_step`.
    ///
    /// # Errors
    ///
    /// Returns an error if `sink` does, and for the same reasons as [`fit`](Trainer::fit), except a
    /// missing optimizer.
    pub fn predict_each(
        &mut self,
        data: &mut dyn Loader<T::Batch>,
        mut sink: impl FnMut(T::Pred) -> Result<()>,
    ) -> Result<Summary> {
        entry::enter(&mut self.run, Phase::Predict, lifecycle::Predict::INFO, |run| {
            validation::evaluate_each::<T, at::predict>(run, data, &mut sink)
        })
    }
}

/// # What runs
impl<T: Task> Trainer<T> {
    /// Returns a table of the hooks, which shows when each of them runs, and a second one of the
    /// parameters that each optimizer updates. The table of hooks is built from the dispatch tables
    /// themselves. After a run with a full [tape](crate::guide::tape), it also lists the changes
    /// that each hook was seen to make.
    #[must_use = "print it with `.print()`"]
    pub fn describe_hooks(&self) -> HookTable {
        let table = &self.run.hooks().table;
        let seen = tape::read(self.run.layers(), |recorder| recorder.seen(table));
        describe(table, self.run.model(), &seen)
    }

    /// Prints the [`HookTable`] to standard output in the format that the environment variable
    /// `TRAINER_DESCRIBE` names, and returns whether the variable is set. The formats are
    /// `terminal` and `full` (as wide as the terminal, or 80 columns; `full` expands the built-in
    /// hooks), `markdown` and `json`. Call this in a program whose user chooses whether to see the
    /// table, and [`describe_hooks`](Trainer::describe_hooks) to print or read it in any case. If
    /// several processes train together, only the
    /// [main](Trainer::is_main) process prints.
    ///
    /// ```no_run
    /// # use trainer::prelude::*;
    /// # fn train(task: impl Task<Batch = Tensor>) -> Result<()> {
    /// let mut trainer = Trainer::builder(task).optimizer(AdamW::new(1e-3)).build()?;
    /// if trainer.describe_requested()? {
    ///     return Ok(());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns an error if the value of the variable is not one of these formats.
    pub fn describe_requested(&self) -> Result<bool> {
        let Some(text) = requested(|| self.describe_hooks())? else { return Ok(false) };
        if self.is_main() {
            print_line(text.trim_end());
        }
        Ok(true)
    }
}

/// # Results
impl<T: Task> Trainer<T> {
    /// The metrics of the last entry point over time. After an error, the history has the rows that
    /// were complete by then. An entry point that a resume skips does not change the history.
    #[must_use]
    pub fn history(&self) -> &History {
        self.run.history()
    }

    /// The counters of the loop.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.run.counters()
    }

    /// The [folder of the run](TrainerBuilder::run_folder); `None` before the first entry point, or
    /// if the run has no folder.
    #[must_use]
    pub fn run_folder(&self) -> Option<&std::path::Path> {
        self.run.folder_state().path()
    }

    /// Whether a `fit` that has not run yet will [resume](TrainerBuilder::resume) from a
    /// checkpoint, if there is one. Until then, the weights are those that the program initialized.
    #[must_use]
    pub fn is_resuming(&self) -> bool {
        self.run.checkpoints().resume.is_some()
    }

    /// Whether this is the main process, the one with [rank](TrainerBuilder::rank) 0, which prints,
    /// logs and saves. In a program with one process, this is true unless another rank is set.
    #[must_use]
    pub fn is_main(&self) -> bool {
        self.run.rank() == 0
    }
}

/// # The task and its optimizers
impl<T: Task> Trainer<T> {
    /// The task.
    #[must_use]
    pub fn task(&self) -> &T {
        erased::task(self.run.hooks())
    }

    /// Mutable access to the task.
    pub fn task_mut(&mut self) -> &mut T {
        erased::task_mut(self.run.hooks_mut())
    }

    /// The variables of the task, by name. If a hook averages weights, these are the live ones;
    /// [`eval_vars`](Trainer::eval_vars) returns those that evaluation uses.
    #[must_use]
    pub fn vars(&self) -> &Vars {
        self.run.vars()
    }

    /// The current optimizer, as [`Cx::optimizer`](crate::Cx::optimizer) returns it: if there are
    /// several, the one used most recently. To choose one, use
    /// [`optimizer_of`](Trainer::optimizer_of).
    ///
    /// # Errors
    ///
    /// Returns an error if the trainer was built without an optimizer.
    pub fn optimizer(&self) -> Result<&dyn Optimizer> {
        self.run.optimizers().current()
    }

    /// Mutable access to the current [`optimizer`](Trainer::optimizer).
    ///
    /// # Errors
    ///
    /// Returns an error if the trainer was built without an optimizer.
    pub fn optimizer_mut(&mut self) -> Result<&mut dyn Optimizer> {
        self.run.optimizers_mut().current_mut()
    }

    /// The optimizer of a part of the model; that of the whole model has the name `""`.
    ///
    /// # Errors
    ///
    /// Returns an error if no optimizer is registered for `part`.
    pub fn optimizer_of(&self, part: &str) -> Result<&dyn Optimizer> {
        self.run.optimizers().for_part(part)
    }

    /// Mutable access to the optimizer of a part of the model; see
    /// [`optimizer_of`](Trainer::optimizer_of).
    ///
    /// # Errors
    ///
    /// Returns an error if no optimizer is registered for `part`.
    pub fn optimizer_of_mut(&mut self, part: &str) -> Result<&mut dyn Optimizer> {
        self.run.optimizers_mut().for_part_mut(part)
    }
}

/// # Hooks
impl<T: Task> Trainer<T> {
    /// The first hook of this type.
    ///
    /// # Errors
    ///
    /// Returns an error if the trainer has no hook of type `H`.
    pub fn hook<H: Send + 'static>(&self) -> Result<&H> {
        self.run.hooks().value()
    }

    /// Mutable access to the first hook of this type.
    ///
    /// # Errors
    ///
    /// Returns an error if the trainer has no hook of type `H`.
    pub fn hook_mut<H: Send + 'static>(&mut self) -> Result<&mut H> {
        self.run.hooks_mut().value_mut()
    }

    /// All hooks of this type, in the order in which they were added.
    pub fn hooks<H: Send + 'static>(&self) -> impl Iterator<Item = &H> {
        self.run.hooks().values()
    }
}

impl<T> fmt::Debug for Trainer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trainer")
            .field("counters", &self.run.counters())
            .field("settings", &self.run.settings())
            .finish_non_exhaustive()
    }
}
