//! The length of a fit.

use std::sync::Arc;
use std::time::Instant;

use crate::checkpoint::progress::{FitStart, Plan};
use crate::data::{Batch, NamedLoader};
use crate::run::Run;
use crate::run::settings::Settings;
use crate::values::every::Every;
use crate::values::float::readable;

/// A mean loss above this multiple of the first epoch's mean loss has diverged.
const DIVERGED: f64 = 1_000.0;
/// A mean loss above this value has diverged, regardless of the first epoch.
const IMPLAUSIBLE: f64 = 1e15;

/// Plans a fit from the settings and, if it is known, the number of batches in an epoch.
pub(super) fn plan<B: Batch>(run: &Run, batches: Option<u64>, valid: &[NamedLoader<'_, B>]) -> Plan {
    let Settings { min_epochs, max_steps, min_steps, max_time, .. } = &run.settings;
    let epochs = run.settings.planned_epochs();
    let FitStart { epochs: begun, steps, at, before } = run.fit.start;
    let epochs = epochs.map(|epochs| begun.saturating_add(epochs));
    let steps_of_epochs = epochs
        .zip(batches)
        .map(|(epochs, batches)| steps.saturating_add(run.settings.steps_of(begun..epochs, batches)));
    let max_steps = max_steps.map(|max| steps.saturating_add(max));
    let planned_steps = steps_of_epochs.into_iter().chain(max_steps).min();
    let comes_due = |every: Option<Every>| match every {
        Some(Every::Steps(n)) => planned_steps.is_none_or(|planned| planned / n > steps / n),
        // `Settings::check_interval` refuses an `n` above the planned number of epochs.
        Some(Every::Epochs(_) | Every::Fraction(_)) | None => true,
    };
    let named =
        valid.iter().filter_map(|loader| Some((Arc::clone(loader.name.as_ref()?), comes_due(loader.every))));
    Plan {
        epochs,
        max_steps,
        validates: valid.iter().any(|loader| comes_due(loader.every)),
        loaders: named.collect(),
        planned_steps,
        deadline: max_time.and_then(|time| at.checked_add(time.saturating_sub(before))),
        has_warned_of_divergence: false,
        min_epochs: begun.saturating_add(*min_epochs),
        min_steps: steps.saturating_add(*min_steps),
    }
}

/// Whether the fit has taken all of its optimizer steps.
pub(super) fn has_all_steps(run: &Run) -> bool {
    run.fit.plan.max_steps.is_some_and(|steps| run.progress.counters.optimizer_steps >= steps)
}

/// Whether the fit has begun all of its epochs.
pub(super) fn has_all_epochs(run: &Run) -> bool {
    run.fit.plan.epochs.is_some_and(|epochs| run.progress.epochs_begun >= epochs)
}

/// Warns, once per fit, if the mean loss of the training pass that just ended is NaN or
/// infinite, or if it is far above that of the first epoch of the fit.
pub(super) fn warn_of_divergence(run: &mut Run) {
    let Some(loss) =
        run.log.get_mut().metric("train/loss").filter(|_| !run.fit.plan.has_warned_of_divergence)
    else {
        return;
    };
    let first = run.history.points("train/loss").next().map(|(_, loss)| loss);
    let epoch = run.progress.counters.epoch;
    let text = if !loss.is_finite() {
        let found = if loss.is_nan() { "NaN" } else { "infinite" };
        format!(
            "the mean training loss of epoch {epoch} is {found}: if the weights are {found} too, training cannot recover; \
             `.hook(trainer::hooks::NanGuard::fail())` ends the run at the first batch with such a loss, before the weights \
             are updated"
        )
    } else if loss.abs() > IMPLAUSIBLE || first.is_some_and(|first| 0.0 < first && first < loss / DIVERGED) {
        let from =
            first.map_or_else(String::new, |first| format!(", after {} in the first", readable(first)));
        format!(
            "the mean training loss of epoch {epoch} is {}{from}: training has diverged; lower the learning rate, or clip \
             the gradients, `.clip_grad_norm(1.0)`",
            readable(loss)
        )
    } else {
        return;
    };
    run.fit.plan.has_warned_of_divergence = true;
    run.warn(text);
}

/// Requests a stop once `max_time` has elapsed.
#[inline]
pub(super) fn check_deadline(run: &mut Run) {
    if let Some(deadline) = run.fit.plan.deadline
        && run.requests.stop.is_none()
        && run.replay.is_none()
        && Instant::now() >= deadline
    {
        let time = run.settings.max_time.unwrap_or_default();
        run.requests.is_of_clock = true;
        run.requests.stop = Some(format!("`max_time` of {time:?} was reached"));
    }
}
