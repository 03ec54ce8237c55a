//! What hooks that go by a metric have in common.

use crate::prelude::*;

/// Which value of a metric is the better one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    /// Of a loss.
    Lower,
    /// Of an accuracy.
    Higher,
}

impl Better {
    /// Is the one better than the other?
    pub(super) fn is_better(self, one: f64, other: f64) -> bool {
        match self {
            Better::Lower => one < other,
            Better::Higher => one > other,
        }
    }
}

/// The value of a metric at the end of an epoch: this epoch's. None for one of validation after an epoch without.
pub(super) fn of_epoch(metrics: &Metrics, name: &str) -> Result<Option<f64>> {
    let was_validated = metrics.iter().any(|(known, _)| known.starts_with("valid/"));
    match metrics.get(name) {
        None if name.starts_with("valid/") && !was_validated => Ok(None),
        None => Err(unknown(metrics, name)),
        value => Ok(value),
    }
}

/// There is no such metric: which there are.
pub(super) fn unknown(metrics: &Metrics, name: &str) -> Error {
    Error::msg(format!("no metric is named `{name}`; there are {}", listed(metrics)))
}

pub(super) fn listed(metrics: &Metrics) -> String {
    metrics.iter().map(|(name, _)| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}
