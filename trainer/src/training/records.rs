//! Creating records, and firing `after_record` for them.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use crate::error::{Error, Result};
use crate::lifecycle::at;
use crate::log::record::{InFlight, Record, Span};
use crate::log::{Joined, Window};
use crate::phase::Phase;
use crate::run::Run;
use crate::run::dispatch::Panic;

impl Run {
    /// Ends a pass over data: merges the values that all ranks have logged, and reduces them to
    /// metrics.
    pub(super) fn finish_pass(&mut self) -> Result<()> {
        let phase = self.place.phase;
        self.log.join_ranks(&self.ranks.world, phase, Joined::Pass)?;
        self.log.finish(phase)
    }

    /// Merges the values that all ranks have logged since the last record.
    fn join_window(&mut self, phase: Phase) -> Result<()> {
        self.log.join_ranks(&self.ranks.world, phase, Joined::Window)
    }

    /// Notes whether a record will be due at the end of the next batch of training, if the
    /// batch takes an optimizer step.
    #[inline]
    pub(crate) fn expect_record(&mut self, ends_window: bool) {
        let Some(n) = self.settings.record_every().filter(|_| ends_window) else {
            self.records.is_due = false;
            return;
        };
        let steps = self.progress.counters.optimizer_steps;
        self.records.is_due = (steps + 1) / n > steps / n;
    }

    /// Creates a record if the optimizer steps since `steps_before` ended an interval.
    #[inline]
    pub(crate) fn record_if_due(&mut self, steps_before: u64) -> Result<()> {
        if self.records.is_due {
            return self.record_steps(steps_before);
        }
        match self.settings.record_every() {
            Some(n) if self.progress.counters.optimizer_steps / n > steps_before / n => {
                self.record_steps(steps_before)
            }
            _ => Ok(()),
        }
    }

    #[cold]
    fn record_steps(&mut self, steps_before: u64) -> Result<()> {
        self.records.is_due = false;
        let phase = self.place.phase;
        let steps = self.progress.counters.optimizer_steps;
        if self.settings.record_every().is_none_or(|n| steps / n == steps_before / n) {
            // The batch took no step, so the values logged for its record belong to no record.
            self.records.pending.retain(|pending| !pending.is_of_batch);
            return Ok(());
        }
        if !self.records.watched.contains(phase) {
            return Ok(());
        }
        self.join_window(phase)?;
        let window = self.log.take_window(phase);
        self.flush_record()?;
        match self.depart(phase, window, Span::Steps)? {
            Some(in_flight) if in_flight.has_arrived() => {
                let record = in_flight.arrive()?;
                self.emit(record)
            }
            in_flight => {
                self.records.in_flight = in_flight;
                Ok(())
            }
        }
    }

    /// Creates a record of the metrics of a pass, and of the values that were logged between
    /// batches since the last record.
    pub(crate) fn record_pass(&mut self) -> Result<()> {
        self.flush_record()?;
        let phase = self.place.phase;
        let scalars = self.log.take_rows(phase);
        match self.depart(phase, Window { scalars, late: Vec::new() }, Span::Pass)? {
            None => Ok(()),
            Some(in_flight) => {
                let record = in_flight.arrive()?;
                self.emit(record)
            }
        }
    }

    /// Creates a record and starts copying its values to the host. Returns `None` if the record
    /// would be empty.
    fn depart(&mut self, phase: Phase, window: Window, span: Span) -> Result<Option<InFlight>> {
        let pending: Vec<_> = self.records.pending.extract_if(.., |pending| pending.phase == phase).collect();
        let Window { scalars, late } = window;
        if scalars.is_empty() && pending.is_empty() {
            return Ok(None);
        }
        let counters = self.progress.counters;
        let record = Record::new(counters, phase, span, scalars);
        InFlight::depart(record, late, pending, self.log.leaves_unread).map(Some)
    }

    /// Fires `after_record` for the record in flight, if there is one.
    #[inline]
    pub(crate) fn flush_record(&mut self) -> Result<()> {
        match self.records.in_flight.take() {
            None => Ok(()),
            Some(in_flight) => {
                let record = in_flight.arrive()?;
                self.emit(record)
            }
        }
    }

    fn emit(&mut self, record: Record) -> Result<()> {
        // Returns after a panic too: the loop has its own phase and counters.
        let fire = |run: &mut Run| catch_unwind(AssertUnwindSafe(|| run.fire::<at::after_record>()));
        self.at_record(record, fire).unwrap_or_else(|panic| resume_unwind(panic))
    }

    fn emit_all(&mut self, record: Record) -> (Vec<Error>, Option<Panic>) {
        self.at_record(record, Run::fire_all::<at::after_record>)
    }

    /// Calls `fire` with a record as the current one, at its phase and counters.
    fn at_record<R>(&mut self, record: Record, fire: impl FnOnce(&mut Run) -> R) -> R {
        let count = &mut self.records.counts[record.phase as usize][usize::from(record.span == Span::Pass)];
        *count += 1;
        self.records.number = *count;
        let counters = std::mem::replace(&mut self.progress.counters, record.counters);
        let result = self.returning(|run| {
            run.place.phase = record.phase;
            run.records.current = Some(record);
            fire(run)
        });
        self.progress.counters = counters;
        self.records.current = None;
        result
    }

    /// Fires `after_record` for the record in flight when an entry point ends.
    pub(crate) fn flush_record_at_exit(&mut self) -> (Vec<Error>, Option<Panic>) {
        self.records.is_due = false;
        match self.records.in_flight.take().map(InFlight::arrive) {
            None => (Vec::new(), None),
            Some(Err(error)) => (vec![error], None),
            Some(Ok(record)) => self.emit_all(record),
        }
    }

    /// When an entry point ends, fires `after_record` for the logged values that no record contains
    /// yet.
    pub(crate) fn record_rest(&mut self) -> (Vec<Error>, Option<Panic>) {
        let (mut errors, mut panic) = (Vec::new(), None);
        for phase in Phase::ALL {
            if let Err(error) = self.join_window(phase) {
                errors.push(error);
            }
            let window = self.log.take_window(phase);
            let record = match self.depart(phase, window, Span::Rest) {
                Ok(None) => continue,
                Ok(Some(in_flight)) => in_flight.arrive(),
                Err(error) => Err(error),
            };
            match record {
                Ok(record) => {
                    let (failed, late) = self.emit_all(record);
                    errors.extend(failed);
                    panic = panic.or(late);
                }
                Err(error) => errors.push(error),
            }
        }
        (errors, panic)
    }
}
