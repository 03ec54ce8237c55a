//! The flow of logged values from hooks to metrics, the history and records.
//!
//! ```text
//! in a batch       ──▶ Meter ──end of the pass──▶ Closed ──▶ `Cx::metrics`, the history, a record
//!                        └──────record is due──────────────▶ a record
//! between batches  ───────────────────────────▶ Closed
//! histogram, image, text ──▶ Pending ──record is due───────▶ a record
//! ```
//!
//! A tensor on the CPU is read when it is logged. Reading a tensor on any other device would
//! synchronize with that device, so the reduction is computed there and read only at the end of the
//! pass or for a record. A checkpoint saves the unread reduction as a tensor.

mod histogram;
pub(crate) mod history;
mod image;
mod media;
mod merge;
mod meter;
pub(crate) mod record;
mod transfer;

use std::collections::BTreeMap;

use indexmap::IndexMap;
use indexmap::map::Entry;
use serde::{Deserialize, Serialize};
use tch::Tensor;

use crate::distributed::World;
use crate::error::{Error, Result, shortened};
use crate::log::history::{ByName, History, Metrics};
use crate::log::record::{InFlight, Record, RecordPlan, Records, RecordsState, Span};
use crate::moments::counters::Counters;
use crate::phase::{Phase, PhaseSet};
use crate::values::float::Float;
pub use history::Goal;
pub(crate) use media::Content;
pub(crate) use merge::Joined;
pub use meter::{IntoValue, Reduce, Value};
use meter::{LoggedBy, Meter, MeterState, Meters, Reader, Scalar};

/// The name under which the trainer itself logs the loss.
pub(crate) const LOSS: &str = "loss";

/// A value logged in a batch.
pub(crate) struct Logged<'a> {
    pub(crate) phase: Phase,
    /// The name without the phase.
    pub(crate) name: &'a str,
    pub(crate) reduce: Reduce,
    pub(crate) value: Value,
    pub(crate) weight: f64,
    /// Whether the hook that logs the value runs on rank 0 only.
    pub(crate) is_main_only: bool,
    /// The index of the hook that logs the value; `None` for the trainer itself.
    pub(crate) hook: Option<usize>,
}

/// The result of a meter for a pass, or a value logged between batches.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Closed {
    phase: Phase,
    /// The name with its phase.
    name: String,
    value: Float,
    /// Whether the value was set in the current epoch or, if the entry point has no epochs, in the
    /// current entry point.
    is_current: bool,
    /// Whether no row of the history contains this value yet.
    is_new_to_history: bool,
    /// Whether no record contains this value yet.
    is_new_to_record: bool,
}

/// All metrics of a run, and its records.
#[derive(Default)]
pub(crate) struct Log {
    meters: Meters,
    reader: Reader,
    /// The metrics of the current entry point by name, in the order in which they were first set.
    closed: ByName<Closed>,
    pub(crate) records: Records,
    /// The error for the first value that could not be logged. `log` stores the error instead of
    /// returning it, so that callers need no `?`.
    pub(crate) failed: Option<Error>,
    /// The names of the metrics that hooks will log in validation.
    pub(crate) expected: Vec<String>,
    /// Whether smaller or larger values of each metric are better, as recorded by the hooks that
    /// compare them, and, without the phase, by those that measure them.
    pub(crate) goals: BTreeMap<String, Goal>,
    /// For each metric that was set without a reduction, the hook that set it. The keys are the
    /// names with their phases.
    set_by: BTreeMap<String, LoggedBy>,
}

/// Returns the goal that the hook that measures a metric knows, or that of a loss. `name` has the
/// phase, and may have the name of a loader and of a class.
pub(crate) fn own_goal(goals: &BTreeMap<String, Goal>, name: &str) -> Option<Goal> {
    let mut own = name;
    while let Some((_, rest)) = own.split_once('/') {
        own = rest;
        let ends = own.match_indices('/').map(|(end, _)| end).chain([own.len()]);
        if let Some(goal) = ends.into_iter().find_map(|end| goals.get(&own[..end])) {
            return Some(*goal);
        }
    }
    Goal::of_name(name)
}

impl Log {
    /// Returns the goal that the hook that measures a metric knows; see [`own_goal`].
    pub(crate) fn own_goal(&self, name: &str) -> Option<Goal> {
        own_goal(&self.goals, name)
    }

    /// Creates a log that creates records of these phases. With `has_windows`, the log also creates
    /// records within training passes.
    pub(crate) fn recorded(goals: BTreeMap<String, Goal>, watched: PhaseSet, has_windows: bool) -> Self {
        Log { goals, records: Records::new(watched, has_windows), ..Log::default() }
    }

    /// Leaves tensors on the CPU unread, for tests without another device.
    pub(crate) fn leave_unread(&mut self) {
        self.reader.leaves_unread = true;
    }

    /// Returns the number of tensors read so far.
    pub(crate) fn reads(&self) -> u64 {
        self.reader.reads.get()
    }

    /// Records the error for a value that cannot be logged, unless an error is already recorded. A
    /// long `name` is shortened in the message.
    #[cold]
    pub(crate) fn cannot_log(&mut self, name: &str, error: &Error) {
        let name = shortened(name);
        let error = Error::usage(format!("cannot log `{name}`: {error}"));
        self.failed.get_or_insert(error);
    }

    /// Adds a value to its reduction over the current pass and, in a training pass with records, to
    /// its reduction since the last record.
    ///
    /// Returns the index of the hook that logged the metric before, if it was another one, until
    /// [`mark_shared`](Log::mark_shared) is called.
    pub(crate) fn add(&mut self, logged: Logged<'_>) -> Result<Option<usize>> {
        let Logged { phase, name, reduce, value, weight, is_main_only, hook } = logged;
        let value = self.reader.settle(value)?;
        let has_window = phase == Phase::Train && self.records.has_windows();
        let meter = self.meters.of(phase, name, reduce);
        meter.is_main_only = is_main_only;
        let other = meter.by.replace(hook);
        if meter.reduce != reduce {
            return Err(Error::usage(format!(
                "it was already logged with the reduction {}, and is now logged with {reduce}: use one reduction for each name",
                meter.reduce
            )));
        }
        meter.add(value, weight, has_window);
        Ok(other)
    }

    /// Adds a loss, which the trainer itself logs.
    pub(crate) fn add_loss(&mut self, phase: Phase, name: &str, value: Value, weight: f64) -> Result<()> {
        let reduce = Reduce::Mean;
        self.add(Logged { phase, name, reduce, value, weight, is_main_only: false, hook: None }).map(drop)
    }

    /// Records that it is known that different hooks log this metric.
    pub(crate) fn mark_shared(&mut self, phase: Phase, name: &str) {
        if let Some(meter) = self.meters.get_mut(phase, name) {
            meter.by = meter.by.shared();
        }
        if let Some(by) = self.set_by.get_mut(&format!("{phase}/{name}")) {
            *by = by.shared();
        }
    }

    /// Sets a metric directly, without a reduction over a pass. Returns the index of the hook that
    /// set it before, as [`add`](Log::add) does.
    pub(crate) fn set(
        &mut self,
        phase: Phase,
        name: &str,
        value: &Value,
        hook: Option<usize>,
    ) -> Result<Option<usize>> {
        let value = self.reader.number(value)?;
        let name = format!("{phase}/{name}");
        let other = match self.set_by.get_mut(&name) {
            Some(by) => by.replace(hook),
            None => self.set_by.entry(name.clone()).or_insert(LoggedBy::Unknown).replace(hook),
        };
        self.close(phase, name, value);
        Ok(other)
    }

    /// Ends a pass over the data, and reduces the values logged in it to the metrics of the phase.
    pub(crate) fn finish(&mut self, phase: Phase) -> Result<()> {
        let mut meters = std::mem::take(&mut self.meters);
        self.closed.reserve(meters.iter().len().saturating_sub(self.closed.len()));
        let finished = meters.of_phase(phase).filter(|meter| meter.last.is_some()).try_for_each(|meter| {
            if let Some(value) = meter.close(&self.reader)? {
                self.close(phase, meter.full_name(), value);
            }
            Ok(())
        });
        self.meters = meters;
        finished
    }

    /// Sets a metric, for the next record of the phase and, except in the sanity check, for the
    /// next row of the history.
    fn close(&mut self, phase: Phase, name: String, value: f64) {
        let closed = Closed {
            phase,
            name,
            value: Float(value),
            is_current: true,
            is_new_to_history: phase != Phase::Sanity,
            is_new_to_record: self.records.watches(phase),
        };
        self.closed.insert(closed.name.clone(), closed);
    }

    /// The reduced metrics of the most recent passes.
    pub(crate) fn metrics(&self) -> Metrics {
        let current = self.closed.values().filter(|metric| metric.is_current);
        current.map(|metric| (metric.name.clone(), metric.value.0)).collect()
    }

    /// Returns the value of one of the [`metrics`](Log::metrics), given its name with the phase.
    pub(crate) fn metric(&self, name: &str) -> Option<f64> {
        self.closed.get(name).filter(|metric| metric.is_current).map(|metric| metric.value.0)
    }

    /// Returns the name of each logged value, with the index of the hook that logged it and the
    /// result of the last pass. Reads no tensors.
    pub(crate) fn sources(&self) -> impl Iterator<Item = (String, Option<usize>, Option<f64>)> {
        let of_passes = self.meters.iter().map(|meter| (meter.full_name(), meter.by.hook()));
        let set = self.set_by.iter().map(|(name, hook)| (name.clone(), hook.hook()));
        of_passes.chain(set).map(|(name, hook)| {
            let value = self.closed.get(&name).map(|metric| metric.value.0);
            (name, hook, value)
        })
    }

    /// Returns the most recently logged value of each metric in the current pass.
    pub(crate) fn latest(&self, phase: Phase) -> Result<Metrics> {
        let meters = self.meters.iter().filter(|meter| meter.phase == phase);
        let values = meters.filter_map(|meter| Some((meter, meter.last.as_ref()?)));
        values.map(|(meter, last)| Ok((meter.full_name(), self.reader.number(last)?))).collect()
    }

    /// Discards the results of an earlier entry point.
    pub(crate) fn clear(&mut self) {
        self.closed.values_mut().for_each(|metric| metric.is_new_to_history = false);
        self.begin_epoch();
        self.records.media.forget_names();
        self.failed = None;
        self.expected.clear();
        self.set_by.clear();
    }

    /// Discards the metrics of the previous epoch, except for those that the history or a record
    /// still needs.
    pub(crate) fn begin_epoch(&mut self) {
        self.closed.retain(|_, metric| {
            metric.is_current = false;
            metric.is_new_to_history || metric.is_new_to_record
        });
    }

    /// Discards the values logged in an interrupted pass.
    pub(crate) fn restart(&mut self, phase: Phase) {
        self.meters.of_phase(phase).for_each(Meter::restart);
    }

    /// Takes the values logged since the last record, whether in training batches or between them.
    /// Also takes the metrics of passes that no record contains yet.
    fn take_window(&mut self, phase: Phase) -> Vec<(String, Scalar)> {
        let mut taken = Vec::new();
        for meter in self.meters.of_phase(phase) {
            if let Some(scalar) = meter.close_window() {
                taken.push((meter.full_name(), scalar));
            }
        }
        taken.extend(self.take_closed(phase));
        taken
    }

    /// Takes the metrics of passes and the values logged between batches that no record contains
    /// yet.
    fn take_closed(&mut self, phase: Phase) -> impl Iterator<Item = (String, Scalar)> {
        let new =
            self.closed.values_mut().filter(move |metric| metric.phase == phase && metric.is_new_to_record);
        new.map(|metric| {
            metric.is_new_to_record = false;
            (metric.name.clone(), Scalar::Number(metric.value.0))
        })
    }

    /// Notes that a histogram, image or text is logged, and returns whether the next record of the
    /// phase will contain it.
    pub(crate) fn keeps_media(&mut self, phase: Phase, name: &str, in_training_batch: bool) -> bool {
        if in_training_batch {
            self.records.note_name(name);
        }
        self.records.keeps_media(phase, in_training_batch)
    }

    /// Adds a histogram, image or text to the next record of the phase.
    pub(crate) fn add_media(
        &mut self,
        phase: Phase,
        name: &str,
        in_training_batch: bool,
        content: Result<Content>,
    ) {
        match content {
            Ok(content) => self.records.media.add(phase, name, content, in_training_batch),
            Err(error) => self.cannot_log(name, &error),
        }
    }

    /// Ends a batch of training. Returns whether the planned record is due.
    #[inline]
    pub(crate) fn end_batch(&mut self, steps: u64) -> bool {
        let plan = self.records.plan;
        let is_due = plan.is_reached(steps);
        if is_due || plan.is_expected() {
            self.records.plan = RecordPlan::Never;
        }
        if !is_due && plan.is_expected() {
            // The batch took no step, so the values logged for its record belong to no record.
            self.records.media.drop_of_batch();
        }
        is_due
    }

    /// Creates a record of the values logged in a phase since the last record, and starts copying
    /// them to the host. Returns `None` if the record would be empty.
    pub(crate) fn depart(
        &mut self,
        counters: Counters,
        phase: Phase,
        span: Span,
    ) -> Result<Option<InFlight>> {
        let scalars = match span {
            Span::Pass => self.take_closed(phase).collect(),
            Span::Steps | Span::Rest => self.take_window(phase),
        };
        let pending = self.records.media.take(phase);
        if scalars.is_empty() && pending.is_empty() {
            return Ok(None);
        }
        let record = Record::new(counters, phase, span);
        InFlight::depart(record, scalars, pending, self.reader.leaves_unread).map(Some)
    }

    /// Replaces the running reductions of a phase with those over all ranks. The results are
    /// bit-identical on all ranks, because all ranks merge the reductions in the same order.
    ///
    /// # Errors
    ///
    /// Returns an error if
    ///
    /// - a tensor cannot be read;
    /// - the collective fails;
    /// - for a pass, a rank has not logged a name that another rank has logged, or has logged it
    ///   with a different reduction.
    ///
    /// Names logged by hooks that run on rank 0 only are not compared. A rank that has logged no
    /// other names had no data, and is not compared either.
    pub(crate) fn join_ranks(&mut self, world: &World, phase: Phase, what: Joined) -> Result<()> {
        if world.is_solo() {
            return Ok(());
        }
        let own = merge::terms(&mut self.meters, &self.reader, phase, what)?;
        for (term, sum) in merge::join(world, &own, phase, what)? {
            let meter = self.meters.of(phase, &term.name, term.reduce);
            meter.set_joined(term.is_main_only, sum, what);
        }
        Ok(())
    }

    /// Returns the metrics that no row of the history contains yet.
    pub(crate) fn new_to_history(&self) -> impl Iterator<Item = (&str, f64)> {
        let new = self.closed.values().filter(|metric| metric.is_new_to_history);
        new.map(|metric| (metric.name.as_str(), metric.value.0))
    }

    /// Adds the new metrics to a history as a row.
    pub(crate) fn add_row(&mut self, history: &mut History, step: Counters) {
        let mut new = self.closed.values_mut().filter(|metric| metric.is_new_to_history).peekable();
        if new.peek().is_some() {
            history.record(
                step,
                new.map(|metric| {
                    metric.is_new_to_history = false;
                    (metric.name.as_str(), metric.value.0)
                }),
            );
        }
    }
}

/// The state of a [`Log`] in a checkpoint. Tensors and the history are saved separately.
#[derive(Debug, Default)]
pub(crate) struct LogState {
    pub(crate) meters: Vec<MeterState>,
    pub(crate) closed: Vec<Closed>,
    pub(crate) records: RecordsState,
}

impl LogState {
    /// Returns the state and the tensors of a log.
    pub(crate) fn of(log: &Log) -> Result<(LogState, Vec<(String, Tensor)>)> {
        let mut tensors = Vec::new();
        let meters = log.meters.iter().map(|meter| MeterState::of(meter, &log.reader, &mut tensors));
        let meters = meters.collect::<Result<_>>()?;
        let records = RecordsState::of(&log.records, &mut tensors);
        let closed = log.closed.values().cloned().collect();
        Ok((LogState { meters, closed, records }, tensors))
    }

    /// Whether a run can have this state: all weights are finite and at least 0, and all counts are
    /// in range.
    pub(crate) fn is_sound(&self, is_count: impl Fn(u64) -> bool) -> bool {
        self.meters.iter().all(MeterState::is_sound) && self.records.counts().all(is_count)
    }

    /// Restores a log, except for its history.
    pub(crate) fn restore(&self, log: &mut Log, tensor: impl Fn(&str) -> Option<Tensor>) {
        log.meters = self.meters.iter().map(|meter| meter.meter(&tensor)).collect();
        log.closed = self.closed.iter().map(|metric| (metric.name.clone(), metric.clone())).collect();
        self.records.restore(&mut log.records, &tensor);
    }

    /// Adds the values of the unread tensors from the same checkpoint to the running reductions.
    ///
    /// # Errors
    ///
    /// Returns an error if one of the tensors is not a scalar.
    pub(crate) fn read(&mut self, tensors: &BTreeMap<String, Tensor>) -> Result<()> {
        self.meters.iter_mut().try_for_each(|meter| meter.read(tensors))
    }

    /// Whether a tensor of this name belongs to a histogram or an image.
    pub(crate) fn is_of_media(name: &str) -> bool {
        name.starts_with(media::PREFIX)
    }

    /// Adds the running reductions of another rank to these, for a run that resumes with a
    /// different number of ranks.
    pub(crate) fn join(mut self, other: LogState) -> Self {
        let keyed = self.meters.into_iter().map(|own| (own.key_of_meter(), own));
        let mut meters: IndexMap<_, _> = keyed.collect();
        for theirs in other.meters {
            match meters.entry(theirs.key_of_meter()) {
                Entry::Occupied(mut own) => own.get_mut().join(&theirs),
                Entry::Vacant(entry) => drop(entry.insert(theirs)),
            }
        }
        self.meters = meters.into_values().collect();
        self
    }

    /// Empties the running reductions, and removes the media that are waiting for a record. After a
    /// resume with a different number of ranks, only rank 0 has them. The other ranks keep the
    /// names, which must be the same on all ranks at the end of a pass.
    pub(crate) fn of_another_rank(mut self) -> Self {
        self.meters.iter_mut().for_each(MeterState::empty);
        self.records.forget_media();
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_goal_is_that_of_a_whole_part_of_the_name() {
        let goals =
            BTreeMap::from([("top/five".to_owned(), Goal::Maximize), ("error".to_owned(), Goal::Minimize)]);
        assert_eq!(own_goal(&goals, "valid/top/five"), Some(Goal::Maximize));
        assert_eq!(own_goal(&goals, "valid/clean/top/five/class 3"), Some(Goal::Maximize));
        assert_eq!(own_goal(&goals, "valid/error/class 3"), Some(Goal::Minimize));
        assert_eq!(own_goal(&goals, "valid/errors"), own_goal(&BTreeMap::new(), "valid/errors"));
    }

    #[test]
    fn metrics_keep_the_order_in_which_they_were_first_logged() {
        let mut log = Log::default();
        let mut add = |name: &str, value: f64| {
            let value = Value::Number(value);
            let logged = Logged {
                phase: Phase::Train,
                name,
                reduce: Reduce::Mean,
                value,
                weight: 1.0,
                is_main_only: false,
                hook: None,
            };
            log.add(logged).unwrap();
        };
        for names in [["a", "b", "c"], ["c", "a", "b"], ["b", "b", "d"]] {
            names.into_iter().for_each(|name| add(name, f64::from(name.as_bytes()[0])));
        }
        log.finish(Phase::Train).unwrap();
        let metrics = log.metrics();
        let names: Vec<_> = metrics.iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["train/a", "train/b", "train/c", "train/d"]);
        assert_eq!(metrics["train/d"], 100.0);
    }
}
