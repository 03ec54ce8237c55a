//! Trial runs: training whose effects are undone afterwards.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use tch::Device;

use super::active::ActiveEntry;
use super::agreement::{NextBatch, agree};
use super::batch_weight::amount;
pub(crate) use super::parts::VARIABLES;
use super::parts::{self, AnyPart};
use super::pass::Drawn;
use super::step::step;
use super::task::Task;
use super::validation::{evaluate, in_phase};
use super::{decide, entry, ranks, window};
use crate::checkpoint::progress::FitState;
use crate::checkpoint::{Saved, States};
use crate::data::{Batches, Loader, NamedLoader, PassNotes};
use crate::distributed::World;
use crate::distributed::current::{self, Current};
use crate::error::{Error, Result, panic_text};
use crate::hook::call::Loop;
use crate::hook::instance::TASK;
use crate::libtorch::{GradModeGuard, Modes};
use crate::lifecycle::{self, at};
use crate::log::{Joined, LOSS};
use crate::modules::WatchGuard;
use crate::moment::Moment;
use crate::phase::Phase;
use crate::run::Hook;
use crate::run::Instance;
use crate::run::RunHooks;
use crate::run::Table;
use crate::run::cancel::{OnSignal, SignalGuard};
use crate::run::layers::{Layer, Layers, SHIMS};
use crate::run::reports::Reports;
use crate::run::{Amount, Dispatch, Place, Run};

/// Whether the caller of a trial does itself what a hook with this value does.
type Replaced = fn(&(dyn Any + Send)) -> bool;

/// A run in the training phase, whose effects are undone at the end.
pub(crate) struct Trial<'r> {
    pub(crate) run: &'r mut Run,
    /// The method that runs the trial, for messages.
    name: &'static str,
    /// The weight and the number of samples of the next batch over all ranks, if they have agreed
    /// on it.
    of_ranks: Option<Amount>,
}

/// Runs a [`Trial`], and then restores the model, the optimizers, the random state and everything
/// that the run records, even after an error or a panic.
///
/// Only hooks with a state or with `trial` are called, because the changes of other hooks could not
/// be undone. For these hooks, a trial begins like the next `fit`, with `before_fit` and
/// `before_epoch`. A warning names the hooks that are left out although they may change training,
/// except those for whose values `is_replaced` returns `true`.
///
/// In several processes, all ranks run the trial together. An error of `body` disconnects this rank
/// from the others, so an error that all ranks return must be in `R`.
pub(crate) fn trial<R>(
    run: &mut Run,
    name: &'static str,
    is_replaced: Replaced,
    body: impl FnOnce(&mut Trial<'_>) -> Result<R>,
) -> Result<R> {
    let mut trial = Trial { run, name, of_ranks: None };
    trial.check()?;
    ranks::join(trial.run.ranks_mut())?;
    ranks::compare_resume(trial.run.checkpoints(), trial.run.world())?;
    let result = trial.run_together(is_replaced, body);
    match &result {
        Err(error) if !(error.is_cancelled() && run.ranks().agreed.cancelled.is_some()) => {
            ranks::leave(run, error);
        }
        _ => {}
    }
    result
}

impl Trial<'_> {
    /// Returns an error if a trial cannot run, or if it could not be undone.
    fn check(&self) -> Result<()> {
        let Trial { run, name, .. } = self;
        run.optimizers().require()?;
        if run.checkpoints().resume.is_some() {
            return Err(Error::usage(format!(
                "`{name}` cannot run before a resumed `fit`, because the weights of the checkpoint are not loaded yet: call it in a \
                 program without `.resume(…)`"
            )));
        }
        if run.optimizers().parts().any(|(_, optimizer, ..)| !optimizer.state_is_complete()) {
            return Err(Error::usage(format!(
                "`{name}` cannot restore the optimizer afterwards, because the state of `optim::Tch` cannot be read: use another \
                 optimizer of `trainer::optim`"
            )));
        }
        let store = run.step().store(run.hooks().task());
        let changes = store.map(|store| run.vars().changes(store)).unwrap_or_default();
        if !changes.is_empty() {
            return Err(Error::usage(format!(
                "`{name}` cannot train layers that were added after the trainer was built: build the whole model before the trainer"
            )));
        }
        if run.modules().is_unchecked && run.progress().fits_begun == 0 {
            return Err(Error::usage(format!(
                "`{name}` cannot run before the first `fit`, because it does not run the hooks at `setup`, and one of them may add \
                 layers: build the whole model before the trainer, or call `fit` first"
            )));
        }
        Ok(())
    }

    fn run_together<R>(
        &mut self,
        is_replaced: Replaced,
        body: impl FnOnce(&mut Trial<'_>) -> Result<R>,
    ) -> Result<R> {
        let Trial { run, name, .. } = self;
        let table = kept_hooks(run.hooks(), run.rank())?;
        let on = (&run.hooks().table, run.device());
        let active = ActiveEntry::begin(lifecycle::Fit::INFO.name, on, run.settings().seed, run.reports())?;
        ranks::compare(run, name)?;
        warn_of_missed(run.hooks(), run.reports(), name, is_replaced);
        let _unobserved = WatchGuard::nothing();
        let on_signal = run.settings().on_signal;
        let signals = (on_signal != OnSignal::Ignore).then(SignalGuard::install).transpose()?;
        let modes = (Modes::begin(run.settings().modes()), GradModeGuard::recorded());
        let changed = run.model().changed();
        let copies = self.copies(&table)?;
        let outer = self.run.begin_anew(lifecycle::Fit::INFO, Phase::Train, Some(table));
        self.run.progress_mut().begin_trial();
        *self.run.fit_mut() = FitState::default();
        self.run.cancellation_mut().handle_signals(signals.is_some());
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            entry::seed(self.run.settings(), self.run.progress(), self.run.world());
            window::discard(self.run)?;
            // Hooks decide at these points which parameters are trained.
            self.run.fire::<at::before_fit>()?;
            self.run.fire::<at::before_epoch>()?;
            body(self)
        }));
        GradModeGuard::record(); // a panic may have left a `tch::no_grad` active
        self.run.step_mut().clear();
        self.run.ranks_mut().is_borrowed = false;
        outer.into_iter().for_each(|outer| outer.restore(self.run));
        let restored = self.restore(copies);
        let Trial { run, name, .. } = self;
        run.model_mut().note_values_except(&changed);
        drop(modes);
        drop(active);
        let received = signals.and_then(|signals| {
            signals.end(on_signal == OnSignal::Exit, || {
                run.reports().notice(&format!("`{name}` was cancelled by a signal"));
            })
        });
        let result = outcome.unwrap_or_else(|panic| {
            ranks::leave(run, &Error::msg(panic_text(&*panic)));
            resume_unwind(panic)
        });
        restored?;
        match (result, received) {
            (Ok(_), Some(by)) => Err(run.cancelled(by)),
            (result, _) => result,
        }
    }

    /// Returns the parts of the run, including the states of the task and of the hooks in the
    /// table.
    fn parts(&self, table: &Table) -> Vec<AnyPart> {
        let called = table.hooks().iter().filter_map(|hook| Some(hook.slot? as usize));
        let called: BTreeSet<usize> = called.chain([TASK]).collect();
        parts::with_values(self.run, |index| called.contains(&index))
    }

    /// Copies the parts, including the states of the task and of the hooks that run.
    fn copies(&self, table: &Table) -> Result<Copies> {
        let parts = self.parts(table);
        let mut states = parts::save(self.run, &parts)?;
        let of_hooks = states.iter().filter(|(name, _)| parts::type_of(name).is_some());
        let devices = of_hooks.map(|(name, saved)| (name.clone(), saved.devices())).collect();
        states.values_mut().try_for_each(Saved::own_its_memory)?;
        Ok(Copies { parts, states, devices })
    }

    /// Restores the parts. Continues after an error, and returns the first one.
    fn restore(&mut self, copies: Copies) -> Result<()> {
        let Copies { parts, mut states, devices } = copies;
        let mut restored = Ok(());
        for part in parts {
            let name = part.name();
            if let Some(mut saved) = states.remove(&*name) {
                let devices = devices.get(&*name).map_or(&[][..], Vec::as_slice);
                let loaded = saved.move_to(devices).and_then(|()| part.load(self.run, &saved));
                restored = restored.and(loaded);
            }
        }
        restored
    }

    /// Draws the next batch of an epoch. In several processes, the epoch ends on all ranks as soon
    /// as one of them has no batch left.
    pub(crate) fn next_batch<T: Task>(
        &mut self,
        batches: &mut Batches<'_, T::Batch>,
        notes: Option<&PassNotes>,
    ) -> Result<Option<T::Batch>> {
        let run = &mut *self.run;
        let batch = batches.next().transpose()?;
        if run.world().is_solo() {
            return Ok(batch);
        }
        let what = "the agreement on the next batch of a trial";
        let is_missing = run.world().is_set(batch.is_none(), what)?;
        let Some(batch) = batch.filter(|_| !is_missing) else { return Ok(None) };
        let index = run.counters().batch_idx;
        run.ranks_mut().is_borrowed = notes.is_some_and(|notes| notes.is_borrowed(index));
        let amount = amount::<T>(run, &batch)?;
        let next = agree(run, Some(NextBatch { exists: true, is_last: false, amount }))?;
        self.of_ranks = next.map(|next| next.amount);
        Ok(Some(batch))
    }

    /// Calls `body` as in a process that trains alone.
    pub(crate) fn alone<R>(&mut self, body: impl FnOnce(&mut Self) -> R) -> R {
        let world = std::mem::replace(&mut self.run.ranks_mut().world, World::solo());
        let outer = current::replace(Current::default());
        let result = catch_unwind(AssertUnwindSafe(|| body(self)));
        current::replace(outer);
        self.run.ranks_mut().world = world;
        result.unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// Trains on one batch, which also ends the accumulation window if `is_last` is set. Returns
    /// `None` while the window is open. At its end, returns the mean loss over the window, or
    /// `Some(None)` if no loss was computed.
    pub(crate) fn step<T: Task>(&mut self, batch: T::Batch, is_last: bool) -> Result<Option<Option<f64>>> {
        let run = &mut *self.run;
        decide::check_cancelled(run)?;
        run.fit_mut().window.begin_batch(is_last);
        let drawn = Drawn { batch, of_ranks: self.of_ranks.take() };
        step::<T>(run, drawn, &mut |_| Ok(()))?;
        if run.fit().window.is_open() {
            return Ok(None);
        }
        run.join_logs(Phase::Train, Joined::Pass)?;
        run.logs_mut().finish(Phase::Train)?;
        let loss = run.logs_mut().metric(&format!("{}/{LOSS}", Phase::Train));
        run.logs_mut().begin_epoch();
        Ok(Some(loss))
    }

    /// Runs a validation pass over these batches.
    pub(crate) fn validate<T: Task>(&mut self, loader: &mut dyn Loader<T::Batch>) -> Result<()> {
        let mut loader = NamedLoader { name: None, every: None, loader };
        in_phase(self.run, Phase::Valid, |run| {
            evaluate::<T, at::valid>(run, &mut loader, None, &mut |_| Ok(()))
        })
    }

    /// Runs a layer around each call of the trial.
    pub(crate) fn watch_calls(&mut self, layer: impl Layer) -> Result<()> {
        self.run.hooks_mut().table = kept_hooks(self.run.hooks(), self.run.rank())?.wrapped(&SHIMS);
        *self.run.layers_mut() = Layers(vec![Arc::new(layer)]);
        Ok(())
    }

    /// Returns what a checkpoint of the trial would save.
    pub(crate) fn states(&self) -> Result<States> {
        parts::save(self.run, &self.parts(&self.run.hooks().table))
    }

    /// Clears the state that a failed step has left behind.
    pub(crate) fn abandon_step(&mut self) -> Result<()> {
        GradModeGuard::record();
        self.run.step_mut().clear();
        self.run.modules_mut().abandon_calls();
        *self.run.place_mut() = Place::begin(lifecycle::Fit::INFO, Phase::Train);
        *self.run.dispatch_mut() = Dispatch::begin(self.run.hooks().table.hooks().len());
        window::discard(self.run)
    }
}

/// Returns an error unless the loader is deterministic.
pub(crate) fn check_loader<T: Task>(loader: &dyn Loader<T::Batch>, name: &str) -> Result<()> {
    if loader.is_deterministic() {
        return Ok(());
    }
    Err(Error::usage(format!(
        "`{name}` needs a deterministic loader, because the run uses the same batches again: if this loader always \
         yields the same batches for the same epoch, declare that, as `from_fn(…).deterministic(true)` does"
    )))
}

/// Whether a trial runs a hook. The hook's `trial` setting decides. By default, the hook must run
/// on all ranks, and must have a value that has a state and may change training.
fn is_kept(hooks: &RunHooks, hook: &Hook) -> bool {
    let is_restored =
        || value_of(hooks, hook).is_some_and(|value| value.extras.state.is_some() && !value.observes);
    hook.definition.trial.unwrap_or_else(|| !hook.definition.main_only && is_restored())
}

/// Whether a trial leaves out a hook that may change training, and that it does not replace.
fn is_missed(hooks: &RunHooks, hook: &Hook, is_replaced: Replaced) -> bool {
    let definition = &hook.definition;
    !is_kept(hooks, hook)
        && !definition.observes
        && !definition.main_only
        && definition.phases().contains(Phase::Train)
        && !value_of(hooks, hook).is_some_and(|value| value.value.as_deref().is_some_and(is_replaced))
}

/// The value of a hook; `None` for a function or a closure.
fn value_of<'r>(hooks: &'r RunHooks, hook: &Hook) -> Option<&'r Instance> {
    hooks.instances.get(hook.slot? as usize)
}

/// The table of the hooks that run in a trial.
fn kept_hooks(hooks: &RunHooks, rank: u32) -> Result<Table> {
    let kept = hooks.table.hooks().iter().filter(|hook| is_kept(hooks, hook)).cloned().collect();
    Table::freeze(kept, rank).map_err(|cycles| Error::usage(cycles.join("; ")))
}

/// Warns about the hooks that do not run in a trial, although they may change training.
fn warn_of_missed(hooks: &RunHooks, reports: &Reports, name: &str, is_replaced: Replaced) {
    let missed = hooks.table.hooks().iter().filter(|hook| is_missed(hooks, hook, is_replaced));
    let paths: BTreeSet<String> = missed.map(|hook| format!("`{}`", hook.definition.origin.path)).collect();
    if !paths.is_empty() {
        let listed = paths.into_iter().collect::<Vec<_>>().join(", ");
        reports.warn(format!(
            "`{name}` does not run {listed}: if one of these hooks changes training, the result does not match the `fit`; give each such hook \
             `#[hook(state)]`, or `#[hook(trial)]` if it keeps nothing between steps"
        ));
    }
}

/// Copies of the parts of a run, on the CPU.
struct Copies {
    parts: Vec<AnyPart>,
    states: States,
    /// The original device of each tensor that the task or a hook has saved, by part. Every other
    /// part copies the saved tensors into its own tensors.
    devices: BTreeMap<String, Vec<Device>>,
}

/// Whether a saved state with this name is that of an optimizer.
pub(crate) fn is_optimizer(name: &str) -> bool {
    parts::is_optimizer(name)
}
