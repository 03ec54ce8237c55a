//! Helpers for hooks that watch a metric.

use crate::error::suggestion;
use crate::prelude::*;

/// Whether the metric `name` belongs to the phase `phase`.
pub(super) fn is_of(name: &str, phase: &str) -> bool {
    name.split_once('/').is_some_and(|(own, _)| own == phase)
}

/// Whether `name` is a metric of the validation pass that just ended.
pub(super) fn is_of_pass<P>(cx: &Cx<P>, name: &str) -> bool {
    let Some(rest) = name.strip_prefix("valid/") else { return false };
    cx.loader().is_none_or(|loader| rest.split_once('/').is_some_and(|(own, _)| own == loader))
}

/// Returns the value of the metric `name`.
///
/// # Errors
///
/// Returns an error that lists the metrics if `name` is not one of them.
pub(super) fn value_of(metrics: &Metrics, name: &str) -> Result<f64> {
    metrics.get(name).ok_or_else(|| unknown(metrics, name))
}

/// Returns the value of a metric at the end of an epoch, or `None` for a validation metric if the
/// epoch had no validation.
///
/// # Errors
///
/// Returns an error that lists the metrics if `name` is not one of them.
pub(super) fn of_epoch(metrics: &Metrics, name: &str) -> Result<Option<f64>> {
    let was_validated = metrics.iter().any(|(known, _)| known.starts_with("valid/"));
    match metrics.get(name) {
        None if name.starts_with("valid/") && !was_validated => Ok(None),
        None => Err(unknown(metrics, name)),
        value => Ok(value),
    }
}

/// The error for a metric that does not exist. It lists the names of the metrics that exist.
fn unknown(metrics: &Metrics, name: &str) -> Error {
    if metrics.iter().next().is_none() {
        return Error::msg(format!(
            "no metric is named `{name}`, because nothing was logged: log it with `cx.log(…)` before this hook runs"
        ));
    }
    let listed = metrics.iter().map(|(name, _)| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    let similar = suggestion(name, metrics.iter().map(|(name, _)| name));
    Error::msg(format!("no metric is named `{name}`; the metrics are {listed}{similar}"))
}
