//! Creates the records that are due, and fires `after_record` for them.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use crate::checkpoint::progress::FitState;
use crate::error::{Error, Result};
use crate::hook::call::Loop;
use crate::hook::call::Panic;
use crate::lifecycle::at;
use crate::log::Joined;
use crate::log::record::{InFlight, Record, RecordPlan, Span};
use crate::moments::counters::Counters;
use crate::phase::Phase;
use crate::run::Run;
use crate::run::settings::Settings;

/// Ends a pass over data: merges the values that all ranks have logged, and reduces them to
/// metrics.
pub(super) fn finish_pass(run: &mut Run) -> Result<()> {
    let phase = run.phase();
    run.join_logs(phase, Joined::Pass)?;
    run.logs_mut().finish(phase)
}

/// Plans the next record. The current batch is expected to take as many optimizer steps as planned
/// if it ends its accumulation window.
#[inline]
pub(super) fn planned(settings: &Settings, fit: &FitState, counters: Counters) -> RecordPlan {
    let ends_window = fit.window.will_end(settings.accumulate_in(counters.epoch));
    let steps = counters.optimizer_steps;
    let planned = if ends_window { steps + fit.plan.steps_per_batch.max(1) } else { steps };
    RecordPlan::new(settings.record_every(), steps, planned)
}

/// Creates the planned record if the current batch has reached it.
#[inline]
pub(super) fn emit_if_due(run: &mut Run) -> Result<()> {
    let plan = run.logs_mut().records.plan;
    if plan.is_reached(run.counters().optimizer_steps) {
        return emit_steps(run);
    }
    if let RecordPlan::Expected(_) = plan {
        // The batch took no step, so the values logged for its record belong to no record.
        run.logs_mut().records.plan = RecordPlan::Never;
        run.logs_mut().drop_media_of_batch();
    }
    Ok(())
}

#[cold]
fn emit_steps(run: &mut Run) -> Result<()> {
    run.logs_mut().records.plan = RecordPlan::Never;
    let phase = run.phase();
    if !run.logs_mut().records.watches(phase) {
        return Ok(());
    }
    run.join_logs(phase, Joined::Window)?;
    let departed = run.depart(phase, Span::Steps)?;
    flush(run)?;
    match departed {
        Some(in_flight) if in_flight.has_arrived() => fire(run, in_flight.arrive()?),
        in_flight => {
            run.logs_mut().records.in_flight = in_flight;
            Ok(())
        }
    }
}

/// Creates a record of the metrics of a pass, and of the values that were logged between batches
/// since the last record.
pub(super) fn emit_pass(run: &mut Run) -> Result<()> {
    flush(run)?;
    match run.depart(run.phase(), Span::Pass)? {
        None => Ok(()),
        Some(in_flight) => fire(run, in_flight.arrive()?),
    }
}

/// Fires `after_record` for the record in flight, if there is one.
#[inline]
pub(super) fn flush(run: &mut Run) -> Result<()> {
    match run.logs_mut().records.in_flight.take() {
        None => Ok(()),
        Some(in_flight) => fire(run, in_flight.arrive()?),
    }
}

/// Fires `after_record` for a record, with the phase and the counters of the record. Then restores
/// those of the loop.
fn fire(run: &mut Run, record: Record) -> Result<()> {
    // The phase and the counters are restored even after a panic.
    let fired =
        at_record(run, record, |run| catch_unwind(AssertUnwindSafe(|| run.fire::<at::after_record>())));
    fired.unwrap_or_else(|panic| resume_unwind(panic))
}

/// Calls `fire` with the run's current record, phase and counters temporarily set to those of
/// `record`.
fn at_record<R>(run: &mut Run, record: Record, fire: impl FnOnce(&mut Run) -> R) -> R {
    let counters = std::mem::replace(&mut run.progress_mut().counters, record.counters);
    let result = run.returning(|run| {
        run.place_mut().phase = record.phase;
        run.logs_mut().records.begin(&record);
        run.set_record(Some(record));
        fire(run)
    });
    run.progress_mut().counters = counters;
    run.set_record(None);
    result
}

/// The errors of hooks at `after_record` when an entry point ends, and the first panic.
type Failures = (Vec<Error>, Option<Panic>);

/// Fires `after_record` for the record in flight when an entry point ends.
pub(super) fn flush_at_exit(run: &mut Run) -> Failures {
    run.logs_mut().records.plan = RecordPlan::Never;
    let in_flight = run.logs_mut().records.in_flight.take();
    in_flight.map_or_else(|| (Vec::new(), None), |in_flight| fire_all_for(run, in_flight.arrive()))
}

/// When an entry point ends, fires `after_record` for the logged values that no record contains
/// yet.
pub(super) fn emit_rest(run: &mut Run) -> Failures {
    let mut errors = Vec::new();
    let mut panic = None;
    for phase in Phase::ALL {
        let joined = run.join_logs(phase, Joined::Window);
        errors.extend(joined.err());
        let departed = run.depart(phase, Span::Rest);
        if let Some(record) =
            departed.and_then(|departed| departed.map(InFlight::arrive).transpose()).transpose()
        {
            let (failed, late) = fire_all_for(run, record);
            errors.extend(failed);
            panic = panic.or(late);
        }
    }
    (errors, panic)
}

/// Fires `after_record` for a record. If a hook fails or panics, the remaining hooks still run.
fn fire_all_for(run: &mut Run, record: Result<Record>) -> Failures {
    match record {
        Ok(record) => at_record(run, record, Run::fire_all::<at::after_record>),
        Err(error) => (vec![error], None),
    }
}

/// Warns about each histogram, image and text that was logged only in training batches without a
/// record. If no record has been due since a value was first logged, there is no warning about it
/// yet.
///
/// Warns about every such value if no record is ever due within a pass, or if `all` is set, as at
/// the end of a fit that was not resumed.
pub(super) fn warn_of_unrecorded(run: &mut Run, all: bool) {
    let all = all || run.settings().record_every().is_none();
    for name in run.logs_mut().records.unrecorded_media(all) {
        run.reports().warn(format!(
            "`train/{name}` is in no record, because no record was due in the batches that logged it: log it where \
             `cx.is_record_due()` is true, or at `after_train_epoch`, or set `.record_every(Every::Steps(1))`"
        ));
    }
}
