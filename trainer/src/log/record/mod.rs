//! [`Record`]: a set of logged values that loggers receive together.

mod histogram;
mod image;
mod pending;
mod transfer;

use std::time::SystemTime;

pub use histogram::Histogram;
pub use image::Image;
pub(crate) use pending::{Content, Pending, PendingState};
pub(crate) use transfer::InFlight;

use crate::moments::counters::Counters;
use crate::phase::{Phase, PhaseSet};

/// A set of logged values that loggers receive together: those logged since the previous record, or
/// the metrics of a pass over data. [`Cx::record`](crate::Cx::record) returns it at `after_record`.
#[derive(Clone, Debug)]
pub struct Record {
    pub(crate) counters: Counters,
    pub(crate) phase: Phase,
    pub(crate) span: Span,
    time: SystemTime,
    scalars: Vec<(String, f64)>,
    media: Vec<(String, Media)>,
}

/// The part of a run over which the values of a record were reduced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Span {
    /// The optimizer steps since the previous record.
    Steps,
    /// A pass over data: an epoch of training, a validation, a test, a prediction.
    Pass,
    /// The time from the last record to the end of the entry point.
    Rest,
}

impl Span {
    /// Returns the name: `steps`, `pass`, `rest`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Span::Steps => "steps",
            Span::Pass => "pass",
            Span::Rest => "rest",
        }
    }
}

/// A logged histogram, image or text.
#[derive(Clone, Debug)]
enum Media {
    Histogram(Histogram),
    Image(Image),
    Text(String),
}

impl Record {
    /// Creates a record without histograms, images and texts.
    pub(crate) fn new(counters: Counters, phase: Phase, span: Span, scalars: Vec<(String, f64)>) -> Self {
        Record { counters, phase, span, time: SystemTime::now(), scalars, media: Vec::new() }
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

    /// The part of the run over which the values were reduced. A record of training steps and one
    /// of an epoch can have the same counters and names; they differ in their spans.
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

/// The state of the records of a run.
#[derive(Default)]
pub(crate) struct Records {
    /// The phases with a hook at `after_record`, in the process of any rank.
    pub(crate) watched: PhaseSet,
    /// The record for which `after_record` is firing.
    pub(crate) current: Option<Record>,
    /// The 1-based number of the current record in its phase. Records of passes are counted
    /// separately.
    pub(crate) number: u64,
    /// For each phase, the number of records of steps and the number of records of passes so far.
    pub(crate) counts: [[u64; 2]; Phase::ALL.len()],
    /// Whether a record is due at the end of the current training batch.
    pub(crate) is_due: bool,
    /// The histograms, images and texts of the next records.
    pub(crate) pending: Vec<Pending>,
    /// The names of histograms, images and texts that were logged in a training batch.
    pub(crate) names: Vec<MediaName>,
    /// A record whose values are being copied from a device.
    pub(crate) in_flight: Option<InFlight>,
}

/// The name of a histogram, image or text that was logged in a training batch of this entry point.
#[derive(Debug)]
pub(crate) struct MediaName {
    pub(crate) name: String,
    /// Whether a record was due at the end of one of these batches.
    pub(crate) is_recorded: bool,
    /// The number of records of training steps when it was first logged.
    pub(crate) since: u64,
}

impl Records {
    /// Notes that a histogram, image or text was logged in a training batch.
    pub(crate) fn note_name(&mut self, name: &str) {
        let is_due = self.is_due;
        match self.names.iter_mut().find(|known| known.name == name) {
            Some(known) => known.is_recorded |= is_due,
            None => {
                let since = self.counts[Phase::Train as usize][0];
                self.names.push(MediaName { name: name.to_owned(), is_recorded: is_due, since });
            }
        }
    }

    pub(crate) fn watched_in(watched: PhaseSet) -> Self {
        Records { watched, ..Records::default() }
    }
}
