//! The length of a fit.

use std::sync::Arc;
use std::time::Instant;

use crate::checkpoint::progress::FitState;
use crate::checkpoint::progress::LoopState;
use crate::checkpoint::progress::{FitPlan, FitStart};
use crate::data::{Batch, NamedLoader};
use crate::error::{Error, Result, shortened};
use crate::log::history::History;
use crate::moments::counters::Counters;
use crate::phase::Phase;
use crate::run::Requests;
use crate::run::reports::Reports;
use crate::run::settings::Settings;
use crate::run::{Model, listed};
use crate::values::every::Every;
use crate::values::float::readable;

/// A mean loss above this multiple of the first epoch's mean loss has diverged.
const DIVERGED: f64 = 1_000.0;
/// A mean loss above this value has diverged, regardless of the first epoch.
const IMPLAUSIBLE: f64 = 1e15;

/// Plans a fit from the settings, the number of optimizer steps that the task takes for a batch
/// and, if it is known, the number of batches in an epoch.
pub(super) fn plan<B: Batch>(
    fit: &FitState,
    settings: &Settings,
    batches: Option<u64>,
    steps_per_batch: u64,
    valid: &[NamedLoader<'_, B>],
) -> FitPlan {
    let Settings { min_epochs, max_steps, min_steps, max_time, .. } = settings;
    let epochs = settings.planned_epochs();
    let FitStart { epochs: begun, steps, at, before } = fit.start;
    let epochs = epochs.map(|epochs| begun.saturating_add(epochs));
    let steps_of_epochs = epochs
        .zip(batches)
        .map(|(epochs, batches)| settings.windows_of(begun..epochs, batches))
        .map(|windows| steps.saturating_add(windows.saturating_mul(steps_per_batch)));
    let max_steps = max_steps.map(|max| steps.saturating_add(max));
    let planned_steps = steps_of_epochs.into_iter().chain(max_steps).min();
    let last = last_epoch(fit, settings, planned_steps, batches, steps_per_batch, epochs);
    let why_unused = |loader: &NamedLoader<'_, B>| match loader.every? {
        Every::Steps(n) => {
            let planned = planned_steps.filter(|planned| planned / n <= steps / n)?;
            let first = (steps / n + 1) * n;
            Some(format!("step {first}, but the fit is planned to end at step {planned}"))
        }
        Every::Epochs(n) => {
            let last = last.filter(|last| last / n <= begun / n)?;
            let first = (begun / n + 1) * n;
            Some(format!(
                "the end of epoch {first}, counted from 1, but the fit is planned to end in epoch {last}"
            ))
        }
        Every::Fraction(_) => None,
    };
    let is_used = |loader: &NamedLoader<'_, B>| why_unused(loader).is_none();
    let named = valid.iter().filter_map(|loader| Some((Arc::clone(loader.name.as_ref()?), is_used(loader))));
    let unused = valid.iter().filter_map(|loader| Some(unused(loader, &why_unused(loader)?)));
    FitPlan {
        epochs,
        max_steps,
        validates: valid.iter().any(is_used),
        loaders: named.collect(),
        planned_steps,
        steps_per_batch,
        deadline: max_time.and_then(|time| at.checked_add(time.saturating_sub(before))),
        unused: unused.collect(),
        min_epochs: begun.saturating_add(*min_epochs),
        min_steps: steps.saturating_add(*min_steps),
        ..FitPlan::default()
    }
}

/// Returns the number of epochs that have begun at the planned end of the fit, if it is known.
fn last_epoch(
    fit: &FitState,
    settings: &Settings,
    planned_steps: Option<u64>,
    batches: Option<u64>,
    steps_per_batch: u64,
    epochs: Option<u64>,
) -> Option<u64> {
    let FitStart { epochs: begun, steps, .. } = fit.start;
    let (Some(planned), Some(batches)) = (planned_steps, batches) else { return epochs };
    let left = planned.saturating_sub(steps);
    let is_reached =
        |epoch: u64| settings.windows_of(begun..epoch, batches).saturating_mul(steps_per_batch) >= left;
    // An epoch has at least one step.
    let (mut low, mut high) = (begun, epochs.unwrap_or_else(|| begun.saturating_add(left)));
    while low < high {
        let middle = u64::midpoint(low, high);
        if is_reached(middle) { high = middle } else { low = middle + 1 }
    }
    Some(high)
}

/// Describes a validation loader that the fit never uses.
fn unused<B: Batch>(loader: &NamedLoader<'_, B>, why: &str) -> String {
    let every = loader.every.unwrap_or(Every::Epochs(1));
    let (what, setting) = match &loader.name {
        None => ("the validation data".to_owned(), format!("`.validate_every(Every::{every:?})`")),
        Some(name) => {
            (format!("the validation loader `{name}`"), format!("its interval, `Every::{every:?}`,"))
        }
    };
    format!(
        "{what} is never used: {setting} is first due at {why}; use a shorter interval, such as `Every::Fraction(1.0)`, or train \
         longer"
    )
}

/// Warns about intervals of validation that are shorter than a batch, unless a setting shortens the
/// epochs.
pub(super) fn warn_of_short_fractions<B: Batch>(
    settings: &Settings,
    reports: &Reports,
    batches: Option<u64>,
    valid: &[NamedLoader<'_, B>],
) {
    let Some(batches) = batches.filter(|_| settings.limit(Phase::Train).is_none()) else { return };
    for loader in valid {
        if let Some(Every::Fraction(fraction)) = loader.every
            && fraction * (batches as f64) < 1.0
        {
            reports.warn(format!(
                "`Every::Fraction({fraction:?})` is less than one batch of an epoch of {batches}, so the validation runs after each \
                 batch: use a larger fraction, or `Every::Steps(1)`"
            ));
        }
    }
}

/// Describes why a resumed fit has nothing left to train, and what to raise.
pub(super) fn nothing_left(fit: &FitState, progress: &LoopState, requests: &Requests) -> String {
    let counters = progress.counters;
    let mut raise = Vec::new();
    if has_all_epochs(fit, progress) {
        let epochs = progress.epochs_begun.saturating_sub(fit.start.epochs);
        let cut = progress.batches.filter(|batches| counters.batch_idx < *batches).map(|batches| {
            format!(
                ", and the rest of the last one, which ended after {} of {batches} batches, is not trained",
                counters.batch_idx
            )
        });
        raise.push(format!(
            "it has begun all of its epochs{}: set `.epochs({})` or more",
            cut.unwrap_or_default(),
            epochs.saturating_add(1)
        ));
    }
    if has_all_steps(fit, progress.counters) {
        let more = counters.optimizer_steps.saturating_sub(fit.start.steps).saturating_add(1);
        raise.push(format!("it has taken all of its steps: set `.max_steps({more})` or more"));
    }
    if let Some(reason) = requests.reason_to_stop()
        && raise.is_empty()
    {
        let more = progress.epochs_done.saturating_sub(fit.start.epochs).saturating_add(1);
        raise.push(format!(
            "a hook has stopped it ({}): set `.min_epochs({more})` or more",
            shortened(reason)
        ));
    }
    format!("nothing is left to train in the resumed fit: {}", raise.join("; "))
}

/// Whether the fit has taken all of its optimizer steps.
pub(super) fn has_all_steps(fit: &FitState, counters: Counters) -> bool {
    fit.plan.max_steps.is_some_and(|steps| counters.optimizer_steps >= steps)
}

/// Whether the fit has begun all of its epochs.
pub(super) fn has_all_epochs(fit: &FitState, progress: &LoopState) -> bool {
    fit.plan.epochs.is_some_and(|epochs| progress.epochs_begun >= epochs)
}

/// Returns a warning if the mean loss of the training pass of an epoch is NaN or infinite, or if it
/// is far above that of the first epoch in the history.
///
/// # Errors
///
/// Returns an error if the weights cannot be read.
pub(super) fn divergence(
    loss: Option<f64>,
    history: &History,
    model: &Model,
    epoch: u64,
) -> Result<Option<String>> {
    let Some(loss) = loss else { return Ok(None) };
    let first = history.points("train/loss").next().map(|(_, loss)| loss);
    let text = if !loss.is_finite() {
        let found = if loss.is_nan() { "NaN" } else { "infinite" };
        let broken = model.not_finite(model.vars.iter().map(|var| (var.name.as_str(), &var.tensor)))?;
        if broken.is_empty() {
            format!(
                "the mean training loss of epoch {epoch} is {found}, because that of at least one batch is; the weights are \
                 finite, so training continues"
            )
        } else {
            format!(
                "the mean training loss of epoch {epoch} is {found}, and there are NaN or infinite values in {}, from which training \
                 cannot recover: return to an earlier checkpoint; `.hook(trainer::hooks::NanGuard::fail().gradients(true))` ends the run \
                 at the first batch with such a loss or gradient, before the weights are updated",
                listed(&broken)
            )
        }
    } else if loss.abs() > IMPLAUSIBLE || first.is_some_and(|first| 0.0 < first && first < loss / DIVERGED) {
        let from =
            first.map_or_else(String::new, |first| format!(", after {} in the first", readable(first)));
        format!(
            "the mean training loss of epoch {epoch} is {}{from}: training has diverged; lower the learning rate, or clip \
             the gradients, `.clip_grad_norm(1.0)`",
            readable(loss)
        )
    } else {
        return Ok(None);
    };
    Ok(Some(text))
}

/// Returns the reason to stop if `max_time` has elapsed and nothing has requested a stop.
#[inline]
pub(super) fn deadline_reached(fit: &FitState, settings: &Settings, requests: &Requests) -> Option<String> {
    let deadline = fit.plan.deadline?;
    let is_reached = requests.reason_to_stop().is_none() && Instant::now() >= deadline;
    is_reached.then(|| format!("`max_time` of {:?} was reached", settings.max_time.unwrap_or_default()))
}

/// The error of a fit whose steps never reach `max_steps`.
pub(super) fn never_ends() -> Error {
    Error::usage(
        "an epoch ended without an optimizer step, so `.max_steps(…)` would never be reached: look for a hook that skips the \
         steps and for batches of weight 0, or set `.epochs(…)` too",
    )
}
