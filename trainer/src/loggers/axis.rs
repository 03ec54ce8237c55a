//! [`Axis`]: the horizontal axis of curves.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::Counters;

/// The horizontal axis against which a logger plots the values of a record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Axis {
    /// The number of optimizer steps.
    #[default]
    OptimizerSteps,
    /// The number of training samples, for comparing runs with different batch sizes.
    Samples,
    /// The epoch, counted from 0.
    Epochs,
    /// The wall-clock time, in seconds since the Unix epoch.
    WallTime,
}

impl Axis {
    /// Returns the position of a record on this axis, given the record's counters and time.
    #[must_use]
    pub fn position(self, counters: Counters, time: SystemTime) -> u64 {
        match self {
            Axis::OptimizerSteps => counters.optimizer_steps,
            Axis::Samples => counters.samples_seen,
            Axis::Epochs => counters.epoch,
            Axis::WallTime => time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
        }
    }
}
