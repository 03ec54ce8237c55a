//! Logging: how the values that hooks log get into the [`Log`].
//!
//! A hook that only observes has only `&Run`, so the log is in a `RefCell`. Borrowing it cannot
//! fail, because each borrow lasts for a single call that runs no user code.

use std::cell::RefCell;

use super::Run;
use super::reports::Reports;
use crate::error::{Error, Result};
use crate::hook::frame::HookId;
use crate::log::{Content, Joined, LOSS, Log, Logged, Reduce, Value};
use crate::moments::tree;
use crate::phase::Phase;
use crate::run::Hook;
use crate::values::paths::public_path;

impl Run {
    /// Adds the current metrics to the history.
    pub(crate) fn add_row(&mut self) {
        self.log.get_mut().add_row(&mut self.history, self.progress.counters);
    }

    /// Merges the values that all ranks have logged in a phase.
    pub(crate) fn join_logs(&mut self, phase: Phase, joined: Joined) -> Result<()> {
        self.log.get_mut().join_ranks(&self.ranks.world, phase, joined)
    }

    /// Logs a value for a hook or the task. `weight` defaults to the weight of the current batch.
    pub(crate) fn log(&self, reduce: Reduce, name: &str, value: Value, weight: Option<f64>) {
        if let Err(error) = self.try_log(reduce, name, value, weight) {
            let name = self.at.metric_name(name);
            self.log.borrow_mut().cannot_log(&name, &error);
        }
    }

    fn try_log(&self, reduce: Reduce, name: &str, value: Value, weight: Option<f64>) -> Result<()> {
        let weight = weight.unwrap_or(self.step.weight);
        if !(weight.is_finite() && weight >= 0.0) {
            return Err(Error::usage(format!(
                "its weight is {weight}: expected the number of elements over which the value is averaged, finite and at least 0"
            )));
        }
        if is_loss_name(name) {
            let text = "the trainer logs the loss itself under this name: choose another name";
            return Err(Error::usage(text));
        }
        let name = self.at.metric_name(name);
        let phase = self.at.place.phase;
        let id = self.at.place.hook;
        let nth = id.map(HookId::index);
        if self.step.batch_len.is_none() {
            let other = self.log.borrow_mut().set(phase, &name, &value, nth)?;
            if let (Some(other), Some(id)) = (other, id) {
                let (one, other) = (self.hooks.table.hook(id), &self.hooks.table.hooks()[other]);
                // A hook at a later moment may replace a value.
                if (one.definition.row)() == (other.definition.row)() {
                    let effect = "the later one replaces the other";
                    warn_of_shared_name(&self.log, &self.reports, (phase, &name), [other, one], effect);
                }
            }
            return Ok(());
        }
        if self.ranks.is_borrowed {
            return Ok(()); // the row belongs to another rank, which logs its values
        }
        let hook = id.map(|id| self.hooks.table.hook(id));
        let is_main_only = hook.is_some_and(|hook| hook.definition.main_only);
        let other = self.log.borrow_mut().add(Logged {
            phase,
            name: &name,
            reduce,
            value,
            weight,
            is_main_only,
            hook: nth,
        })?;
        if let (Some(other), Some(hook)) = (other, hook) {
            let other = &self.hooks.table.hooks()[other];
            let effect = "their values are combined";
            warn_of_shared_name(&self.log, &self.reports, (phase, &name), [other, hook], effect);
        }
        Ok(())
    }

    /// Logs a histogram, an image or a text.
    pub(crate) fn log_media(&self, name: &str, content: impl FnOnce() -> Result<Content>) {
        let name = self.at.metric_name(name);
        let in_training_batch = self.step.is_in_training_batch(self.at.place.phase);
        let phase = self.at.place.phase;
        if self.log.borrow_mut().keeps_media(phase, &name, in_training_batch) {
            let content = content();
            self.log.borrow_mut().add_media(phase, &name, in_training_batch, content);
        }
    }
}

/// Warns that two hooks log values under one name, unless they are methods of one value.
#[cold]
fn warn_of_shared_name(
    log: &RefCell<Log>,
    reports: &Reports,
    (phase, name): (Phase, &str),
    hooks: [&Hook; 2],
    effect: &str,
) {
    let [one, other] = hooks;
    if one.slot.is_some() && one.slot == other.slot {
        return;
    }
    let [one, other] = hooks.map(|hook| public_path(&hook.definition.origin.name()).into_owned());
    log.borrow_mut().mark_shared(phase, name);
    reports.warn(format!(
        "`{phase}/{name}` is logged by both `{one}` and `{other}`, and {effect}: use different names"
    ));
}

/// Whether the trainer logs a loss under this name: the loss of the step, or the loss of an
/// operation of a custom lifecycle.
fn is_loss_name(name: &str) -> bool {
    name == LOSS || name.ends_with("/loss") && tree::moments().iter().any(|moment| moment.loss == name)
}
