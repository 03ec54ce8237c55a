//! [`Record`]: a set of logged values that loggers receive together.

use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use tch::Tensor;
pub use trainer_formats::run::Span;

pub use super::histogram::Histogram;
pub use super::image::Image;
use super::media::{Media, MediaState, Waiting};
pub(crate) use super::transfer::InFlight;
use crate::moments::counters::Counters;
use crate::phase::{Phase, PhaseSet};

/// A set of logged values that loggers receive together: those logged since the previous record, or
/// the metrics of a pass over data. [`Cx::record`](crate::Cx::record) returns it at `after_record`.
///
/// ```standalone_crate
/// use trainer::prelude::*;
///
/// /// Prints each number as it is recorded.
/// #[hook]
/// fn print_record(cx: &Cx<AfterRecord>) {
///     let record = cx.record();
///     for (name, value) in record.scalars() {
///         println!("{} {name} {value}", record.counters().optimizer_steps);
///     }
/// }
/// # fn main() {}
/// ```
#[derive(Clone, Debug)]
pub struct Record {
    pub(crate) counters: Counters,
    pub(crate) phase: Phase,
    pub(crate) span: Span,
    time: SystemTime,
    pub(super) scalars: Vec<(String, f64)>,
    pub(super) media: Vec<(String, Media)>,
}

impl Record {
    /// Creates a record without values.
    pub(super) fn new(counters: Counters, phase: Phase, span: Span) -> Self {
        Record { counters, phase, span, time: SystemTime::now(), scalars: Vec::new(), media: Vec::new() }
    }

    /// The counters at the time of the record. `optimizer_steps` is the usual horizontal axis.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// The phase in which the values were logged.
    #[must_use]
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// The part of the run over which the values were reduced. A record of training steps,
    /// [`Span::Steps`], and one of an epoch, [`Span::Pass`], can have the same counters and names;
    /// only their spans differ. At the end of an entry point, [`Span::Rest`] has what remains.
    #[must_use]
    pub fn span(&self) -> Span {
        self.span
    }

    /// The wall-clock time of the record.
    #[must_use]
    pub fn time(&self) -> SystemTime {
        self.time
    }

    /// The numbers by name, in the form `phase/name`, such as `train/loss`.
    pub fn scalars(&self) -> impl Iterator<Item = (&str, f64)> {
        self.scalars.iter().map(|(name, value)| (name.as_str(), *value))
    }

    /// The histograms by name, in the form `phase/name`.
    pub fn histograms(&self) -> impl Iterator<Item = (&str, &Histogram)> {
        self.media.iter().filter_map(|(name, media)| match media {
            Media::Histogram(histogram) => Some((name.as_str(), histogram)),
            _ => None,
        })
    }

    /// The images by name, in the form `phase/name`.
    pub fn images(&self) -> impl Iterator<Item = (&str, &Image)> {
        self.media.iter().filter_map(|(name, media)| match media {
            Media::Image(image) => Some((name.as_str(), image)),
            _ => None,
        })
    }

    /// The texts by name, in the form `phase/name`.
    pub fn texts(&self) -> impl Iterator<Item = (&str, &str)> {
        self.media.iter().filter_map(|(name, media)| match media {
            Media::Text(text) => Some((name.as_str(), text.as_str())),
            _ => None,
        })
    }
}

/// When the next record of training steps is due.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum RecordPlan {
    /// Not before the next batch, if at all.
    #[default]
    Never,
    /// At this number of optimizer steps.
    At(u64),
    /// At this number of optimizer steps, at the end of the current batch.
    Expected(u64),
}

impl RecordPlan {
    /// Plans the record that follows the `steps` optimizer steps so far, if there is one after
    /// every `every` steps. The current batch is planned to end after `planned` steps.
    #[inline]
    pub(crate) fn new(every: Option<u64>, steps: u64, planned: u64) -> Self {
        match every.map(|every| (steps / every + 1).saturating_mul(every)) {
            None => RecordPlan::Never,
            Some(at) if at <= planned => RecordPlan::Expected(at),
            Some(at) => RecordPlan::At(at),
        }
    }

    #[inline]
    pub(super) fn is_expected(self) -> bool {
        matches!(self, RecordPlan::Expected(_))
    }

    /// Whether a record is due at this number of optimizer steps.
    #[inline]
    pub(crate) fn is_reached(self, steps: u64) -> bool {
        matches!(self, RecordPlan::At(at) | RecordPlan::Expected(at) if at <= steps)
    }
}

/// The records of a run.
#[derive(Default)]
pub(crate) struct Records {
    /// The phases with a hook at `after_record` on any rank.
    watched: PhaseSet,
    /// Whether records are created within training passes.
    has_windows: bool,
    /// The 1-based number of the current record in its phase. Records of passes are counted
    /// separately.
    pub(crate) number: u64,
    counts: Counts,
    pub(crate) plan: RecordPlan,
    /// The histograms, images and texts of the next records.
    pub(super) media: Waiting,
    /// A record whose values are being copied from a device.
    pub(crate) in_flight: Option<InFlight>,
}

/// For each phase, the number of records of steps and the number of records of passes so far.
type Counts = [[u64; 2]; Phase::ALL.len()];

impl Records {
    pub(super) fn new(watched: PhaseSet, has_windows: bool) -> Self {
        Records { watched, has_windows, ..Records::default() }
    }

    /// Whether a hook receives the records of a phase.
    pub(crate) fn watches(&self, phase: Phase) -> bool {
        self.watched.contains(phase)
    }

    /// Whether a hook receives records of training steps.
    pub(super) fn has_windows(&self) -> bool {
        self.has_windows && self.watches(Phase::Train)
    }

    /// Whether a histogram, image or text that is logged now becomes part of a record.
    /// `in_training_batch` states whether this happens in a training batch.
    pub(crate) fn keeps_media(&self, phase: Phase, in_training_batch: bool) -> bool {
        self.watches(phase) && (self.plan.is_expected() || !in_training_batch)
    }

    /// Assigns the next number to this record.
    pub(crate) fn begin(&mut self, record: &Record) {
        let count = &mut self.counts[record.phase as usize][usize::from(record.span == Span::Pass)];
        *count += 1;
        self.number = *count;
    }

    /// Notes that a histogram, image or text was logged in a training batch.
    pub(super) fn note_name(&mut self, name: &str) {
        if self.watches(Phase::Train) {
            self.media.note_name(name, self.plan.is_expected(), self.of_training_steps());
        }
    }

    /// Returns the names of the histograms, images and texts that were only logged in training
    /// batches without a record. Unless `all` is set, omits those first logged after the last
    /// record of training steps.
    pub(crate) fn unrecorded_media(&self, all: bool) -> Vec<String> {
        self.media.unrecorded(if all { None } else { Some(self.of_training_steps()) })
    }

    /// The number of records of training steps so far.
    fn of_training_steps(&self) -> u64 {
        self.counts[Phase::Train as usize][0]
    }
}

/// The state of [`Records`] in a checkpoint.
#[derive(Debug, Default, Deserialize, Serialize)]
pub(crate) struct RecordsState {
    counts: Counts,
    media: Vec<MediaState>,
}

impl RecordsState {
    /// Returns the state. Adds the tensors of media, by name, to `tensors`.
    pub(super) fn of(records: &Records, tensors: &mut Vec<(String, Tensor)>) -> Self {
        RecordsState { counts: records.counts, media: records.media.state(tensors) }
    }

    /// Returns, for each phase, the number of records of steps and the number of records of passes.
    pub(super) fn counts(&self) -> impl Iterator<Item = u64> {
        self.counts.into_iter().flatten()
    }

    pub(super) fn restore(&self, records: &mut Records, tensor: impl Fn(&str) -> Option<Tensor>) {
        records.counts = self.counts;
        records.media.restore(&self.media, tensor);
    }

    /// Removes the media that wait for a record.
    pub(super) fn forget_media(&mut self) {
        self.media.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_planned_for_the_end_of_each_interval() {
        for every in 1..5 {
            for steps in 0..12 {
                for taken in 0..4 {
                    let plan = RecordPlan::new(Some(every), steps, steps + taken);
                    let ends_interval = (steps + taken) / every > steps / every;
                    assert_eq!(plan.is_expected(), ends_interval, "{every} {steps} {taken}");
                    assert_eq!(plan.is_reached(steps + taken), ends_interval, "{every} {steps} {taken}");
                }
            }
        }
        assert_eq!(RecordPlan::new(None, 3, 4), RecordPlan::Never);
        assert!(!RecordPlan::Never.is_reached(u64::MAX));
    }
}
