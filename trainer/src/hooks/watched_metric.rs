//! Helpers for hooks that log or watch a metric, and behave the same on all ranks.

use crate::error::did_you_mean;
use crate::lifecycle::{CanLog, HasMetrics};
use crate::prelude::*;
use crate::values::float::exact;

/// How much the values of a metric on two ranks may differ, relative to the larger one, because the
/// hosts of the ranks round differently.
const ROUNDING: f64 = 1e-6;

/// Adds 1 to the count `name` of something that has happened on all ranks together: the sum over
/// all ranks counts it once.
pub(super) fn log_once<P: CanLog>(cx: &Cx<P>, name: &str) {
    cx.log_as(name, f64::from(u8::from(cx.is_main())), Reduce::Sum);
}

/// Whether the metric `name` belongs to the phase `phase`.
pub(super) fn is_of(name: &str, phase: &str) -> bool {
    name.split_once('/').is_some_and(|(own, _)| own == phase)
}

/// Whether `name` is a metric of the validation pass that just ended.
pub(super) fn is_of_pass<P>(cx: &Cx<P>, name: &str) -> bool {
    let Some(rest) = name.strip_prefix("valid/") else { return false };
    cx.loader().is_none_or(|loader| rest.split_once('/').is_some_and(|(own, _)| own == loader))
}

/// Returns the value of the metric `name`, which is the same on all ranks: that of the lowest rank
/// that has logged it. `hook` is the hook that decides by it. This is a collective.
///
/// # Errors
///
/// Returns an error that lists the metrics if `name` is not one of them, and an error if each rank
/// has logged its own value.
pub(super) fn value_of<P: HasMetrics + OnAllRanks>(cx: &Cx<P>, hook: &str, name: &str) -> Result<f64> {
    let metrics = cx.metrics();
    let own = metrics.get(name);
    // As bits, because JSON has no number that is NaN or infinite.
    let all = cx.world().gather(&format!("`{name}`, which `{hook}` watches"), &own.map(f64::to_bits))?;
    let logged = (0_u32..).zip(all).filter_map(|(rank, bits)| Some((rank, f64::from_bits(bits?))));
    let logged: Vec<(u32, f64)> = logged.collect();
    let [(first, value), others @ ..] = logged.as_slice() else { return Err(unknown(&metrics, name)) };
    match others.iter().find(|(_, other)| !is_close(*value, *other)) {
        None => Ok(*value),
        Some((rank, other)) => Err(Error::msg(format!(
            "each rank has logged its own value of `{name}`, which `{hook}` watches: {} on rank {first}, but {} on rank {rank}; log \
             the mean over the ranks, which `World::average` computes",
            exact(*value),
            exact(*other)
        ))),
    }
}

fn is_close(one: f64, other: f64) -> bool {
    one == other
        || one.is_nan() && other.is_nan()
        || (one - other).abs() <= ROUNDING * one.abs().max(other.abs()) && (one - other).is_finite()
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
    let similar = did_you_mean(name, metrics.iter().map(|(name, _)| name));
    Error::msg(format!("no metric is named `{name}`; the metrics are {listed}{similar}"))
}
