//! Creates the records that are due, and fires `after_record` for them.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use crate::checkpoint::progress::FitState;
use crate::error::{Error, Result};
use crate::hook::call::Loop;
use crate::hook::call::Panic;
use crate::lifecycle::at;
use crate::log::record::{InFlight, Record, RecordPlan, Span};
use crate::log::{Joined, Log};
use crate::moments::counters::Counters;
use crate::phase::Phase;
use crate::run::Run;
use crate::run::reports::Reports;
use crate::run::settings::Settings;

/// Plans the next record. The current batch is expected to take as many optimizer steps as planned
/// if it ends its accumulation window.
#[inline]
pub(super) fn planned(settings: &Settings, fit: &FitState, counters: Counters) -> RecordPlan {
    let ends_window = fit.window.will_end(settings.accumulate_in(counters.epoch));
    let steps = counters.optimizer_steps;
    let planned = if ends_window { steps + fit.plan.steps_per_batch.max(1) } else { steps };
    RecordPlan::new(settings.record_every(), steps, planned)
}

/// Creates the record of training steps that is due.
#[cold]
pub(super) fn emit_steps(run: &mut Run) -> Result<()> {
    let (phase, counters) = (run.phase(), run.counters());
    if !run.logs_mut().records.watches(phase) {
        return Ok(());
    }
    run.join_logs(phase, Joined::Window)?;
    let departed = run.logs_mut().depart(counters, phase, Span::Steps)?;
    flush(run)?;
    let has_arrived = departed.as_ref().is_some_and(InFlight::has_arrived);
    run.logs_mut().records.in_flight = departed;
    if has_arrived { flush(run) } else { Ok(()) }
}

/// Creates a record of the metrics of a pass, and of the values that were logged between batches
/// since the last record.
pub(super) fn emit_pass(run: &mut Run) -> Result<()> {
    flush(run)?;
    let (phase, counters) = (run.phase(), run.counters());
    run.logs_mut().records.in_flight = run.logs_mut().depart(counters, phase, Span::Pass)?;
    flush(run)
}

/// Fires `after_record` for the record in flight, if there is one.
#[inline]
pub(super) fn flush(run: &mut Run) -> Result<()> {
    let Some(in_flight) = run.logs_mut().records.in_flight.take() else { return Ok(()) };
    // The phase and the counters are restored even after a panic.
    let fired = at_record(run, in_flight.arrive()?, |run| {
        catch_unwind(AssertUnwindSafe(|| run.fire::<at::after_record>()))
    });
    fired.unwrap_or_else(|panic| resume_unwind(panic))
}

/// Calls `fire` with the run's current record, phase and counters temporarily set to those of
/// `record`.
fn at_record<R>(run: &mut Run, record: Record, fire: impl FnOnce(&mut Run) -> R) -> R {
    let counters = std::mem::replace(&mut run.progress_mut().counters, record.counters);
    let result = run.returning(|run| {
        run.place_mut().phase = record.phase;
        run.logs_mut().records.begin(&record);
        run.occasion_mut().record = Some(record);
        fire(run)
    });
    run.progress_mut().counters = counters;
    run.occasion_mut().record = None;
    result
}

/// The errors of hooks at `after_record` when an entry point ends, and the first panic.
type Failures = (Vec<Error>, Option<Panic>);

/// Fires `after_record` for the record in flight when an entry point ends. If a hook fails or
/// panics, the remaining hooks still run.
pub(super) fn flush_at_exit(run: &mut Run) -> Failures {
    let records = &mut run.logs_mut().records;
    records.plan = RecordPlan::Never;
    match records.in_flight.take().map(InFlight::arrive) {
        None => (Vec::new(), None),
        Some(Ok(record)) => at_record(run, record, Run::fire_all::<at::after_record>),
        Some(Err(error)) => (vec![error], None),
    }
}

/// When an entry point ends, fires `after_record` for the logged values that no record contains
/// yet.
pub(super) fn emit_rest(run: &mut Run) -> Failures {
    let mut errors = Vec::new();
    let mut panic = None;
    for phase in Phase::ALL {
        let joined = run.join_logs(phase, Joined::Window);
        errors.extend(joined.err());
        let counters = run.counters();
        match run.logs_mut().depart(counters, phase, Span::Rest) {
            Ok(departed) => run.logs_mut().records.in_flight = departed,
            Err(error) => errors.push(error),
        }
        let (failed, late) = flush_at_exit(run);
        errors.extend(failed);
        panic = panic.or(late);
    }
    (errors, panic)
}

/// Warns about each histogram, image and text that was logged only in training batches without a
/// record. If no record has been due since a value was first logged, there is no warning about it
/// yet.
///
/// Warns about every such value if no record is ever due within a pass, or if `all` is set, as at
/// the end of a fit that was not resumed.
pub(super) fn warn_of_unrecorded(settings: &Settings, log: &Log, reports: &Reports, all: bool) {
    let all = all || settings.record_every().is_none();
    for name in log.records.unrecorded_media(all) {
        reports.warn(format!(
            "`train/{name}` is in no record, because no record was due in the batches that logged it: log it where \
             `cx.is_record_due()` is true, or at `after_train_epoch`, or set `.record_every(Every::Steps(1))`"
        ));
    }
}
