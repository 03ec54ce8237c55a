//! [`Summary`]: what an entry point returns.

use crate::log::history::History;
use crate::log::history::Metrics;
use crate::moments::counters::Counters;

/// The result of an entry point of the trainer.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Summary {
    /// The counters at the end.
    pub counters: Counters,
    /// The last value of each metric of this entry point, keyed `phase/name`:
    /// `summary.metrics["valid/loss"]`.
    pub metrics: Metrics,
    /// All metrics of this entry point, over time.
    pub history: History,
    /// The reason why the run stopped early, if a hook requested a stop or `max_time` was reached.
    pub stopped: Option<String>,
    /// The warnings of hooks ([`Cx::warn`](crate::Cx::warn)) and of the trainer, each once: those
    /// of this entry point, and those since the previous one, for example of
    /// [`find_lr`](crate::Trainer::find_lr).
    pub warnings: Vec<String>,
    /// The files of loggers, and the addresses of servers, from which rows of this run are missing
    /// because they could not be written. There is a warning for each.
    pub incomplete_logs: Vec<String>,
}

impl Summary {
    /// The summary of an entry point that had finished when a checkpoint was written.
    pub(crate) fn replayed(counters: Counters, metrics: Metrics, stopped: Option<String>) -> Self {
        let mut history = History::default();
        history.record(counters, &metrics);
        Summary { counters, metrics, history, stopped, warnings: Vec::new(), incomplete_logs: Vec::new() }
    }
}
