//! [`Goal`], and helpers for hooks that watch a metric.

use crate::error::suggestion;
use crate::prelude::*;

/// Whether smaller or larger values of a metric are better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// Smaller values are better, as for a loss.
    Minimize,
    /// Larger values are better, as for an accuracy.
    Maximize,
}

impl Goal {
    /// Whether `one` is better than `other`. NaN is never better, and nothing is better than NaN.
    pub(super) fn is_better(self, one: f64, other: f64) -> bool {
        match self {
            Goal::Minimize => one < other,
            Goal::Maximize => one > other,
        }
    }
}

/// Whether the metric `name` belongs to the phase `phase`.
pub(super) fn is_of(name: &str, phase: &str) -> bool {
    name.split_once('/').is_some_and(|(own, _)| own == phase)
}

/// Checks, when a fit starts, that there will be values of the metric `name`.
///
/// # Errors
///
/// Returns an error if it is not a metric of training or validation, or if this fit does not
/// validate.
pub(super) fn check_watched<P>(cx: &Cx<P>, name: &str) -> Result<()> {
    check_loader(cx, name)?;
    if is_of(name, "train") || is_of(name, "valid") && cx.validates() {
        return Ok(());
    }
    Err(Error::msg(if is_of(name, "valid") {
        format!(
            "`{name}` will never be measured, because this fit does not validate: pass validation data, \
             `fit(&mut train, Some(&mut valid))`, and let `.validate_every(…)` come due within the fit"
        )
    } else {
        format!("`{name}`: expected `train/…` or `valid/…`")
    }))
}

/// Checks, when a fit starts, that a metric of validation is one of a validation loader, if these
/// have names.
///
/// # Errors
///
/// Returns an error if it is not, or if the validation of its loader does not come due.
pub(super) fn check_loader<P>(cx: &Cx<P>, name: &str) -> Result<()> {
    let Some(rest) = name.strip_prefix("valid/").filter(|_| cx.valid_loaders().next().is_some()) else {
        return Ok(());
    };
    let loader = rest.split_once('/').map_or("", |(loader, _)| loader);
    let Some((_, comes_due)) = cx.valid_loaders().find(|(own, _)| *own == loader) else {
        let names = || cx.valid_loaders().map(|(own, _)| own);
        let listed = names().map(|own| format!("`{own}`")).collect::<Vec<_>>().join(", ");
        let first = names().next().unwrap_or_default();
        return Err(Error::msg(if loader.is_empty() {
            format!(
                "`{name}` does not name a validation loader: there are {listed}; write `valid/{first}/{rest}`, for example"
            )
        } else {
            let similar = suggestion(loader, names());
            format!("`{name}`: no validation loader is named `{loader}`: there are {listed}{similar}")
        }));
    };
    if comes_due {
        return Ok(());
    }
    Err(Error::msg(format!(
        "`{name}` will never be measured, because the validation of `{loader}` does not come due within this fit: let its          interval end earlier"
    )))
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

/// Returns the value of a metric at the end of an epoch; `None` for a metric of validation if the
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

/// The error for a metric that does not exist, with the names of those that do.
fn unknown(metrics: &Metrics, name: &str) -> Error {
    let listed = metrics.iter().map(|(name, _)| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    let similar = suggestion(name, metrics.iter().map(|(name, _)| name));
    Error::msg(format!("no metric is named `{name}`; there are {listed}{similar}"))
}
