//! The length of a fit, and its accumulation windows.

use std::sync::Arc;
use std::time::Instant;

use super::validation::Loaders;
use crate::checkpoint::progress::{AccumulationWindow, FitStart, Plan};
use crate::data::Batch;
use crate::run::Run;
use crate::run::settings::Settings;
use crate::values::every::Every;
use crate::values::float::readable;

/// A mean loss above this multiple of the first epoch's has diverged.
const DIVERGED: f64 = 1_000.0;
/// A mean loss above this has diverged, whatever it was before.
const IMPLAUSIBLE: f64 = 1e15;

impl Run {
    /// Plans a fit from the settings and, if it is known, the number of batches in an epoch.
    pub(super) fn plan<B: Batch>(&self, batches: Option<u64>, valid: &Loaders<'_, B>) -> Plan {
        let Settings { min_epochs, max_steps, min_steps, max_time, .. } = &self.settings;
        let epochs = self.settings.planned_epochs();
        let FitStart { epochs: begun, steps, at, before } = self.fit.start;
        let epochs = epochs.map(|epochs| begun.saturating_add(epochs));
        let steps_of_epochs = epochs
            .zip(batches)
            .map(|(epochs, batches)| steps.saturating_add(self.settings.steps_of(begun..epochs, batches)));
        let max_steps = max_steps.map(|max| steps.saturating_add(max));
        let planned_steps = steps_of_epochs.into_iter().chain(max_steps).min();
        let comes_due = |every: Option<Every>| match every {
            Some(Every::Steps(n)) => planned_steps.is_none_or(|planned| planned / n > steps / n),
            // `Settings::check_interval` refuses an `n` above the planned number of epochs.
            Some(Every::Epochs(_) | Every::Fraction(_)) | None => true,
        };
        let named = valid.iter().filter_map(|it| Some((Arc::clone(it.name.as_ref()?), comes_due(it.every))));
        Plan {
            epochs,
            max_steps,
            validates: valid.iter().any(|it| comes_due(it.every)),
            loaders: named.collect(),
            planned_steps,
            deadline: max_time.and_then(|time| at.checked_add(time.saturating_sub(before))),
            has_warned_of_divergence: false,
            min_epochs: begun.saturating_add(*min_epochs),
            min_steps: steps.saturating_add(*min_steps),
        }
    }
}

impl Run {
    /// Whether the fit has taken all of its optimizer steps.
    pub(super) fn has_all_steps(&self) -> bool {
        self.fit.plan.max_steps.is_some_and(|steps| self.progress.counters.optimizer_steps >= steps)
    }

    /// Whether the fit has begun all of its epochs.
    pub(super) fn has_all_epochs(&self) -> bool {
        self.fit.plan.epochs.is_some_and(|epochs| self.progress.epochs_begun >= epochs)
    }

    /// Whether the fit is over, so that no further epoch begins.
    pub(super) fn is_over(&self) -> bool {
        self.has_all_epochs() || self.has_all_steps() || self.is_stopped()
    }

    /// Warns, once per fit, if the mean loss of the training pass that just ended is NaN or
    /// infinite, or if it is far above that of the first epoch of the fit.
    pub(super) fn warn_of_divergence(&mut self) {
        let Some(loss) = self.log.metric("train/loss").filter(|_| !self.fit.plan.has_warned_of_divergence)
        else {
            return;
        };
        let first = self.log.history.points("train/loss").next().map(|(_, loss)| loss);
        let epoch = self.progress.counters.epoch;
        let text = if !loss.is_finite() {
            let found = if loss.is_nan() { "NaN" } else { "infinite" };
            format!(
                "the mean training loss of epoch {epoch} is {found}: if the weights are {found} too, training cannot recover; \
                 `.hook(trainer::hooks::NanGuard::fail())` ends the run at the first batch with such a loss, before the weights \
                 are updated"
            )
        } else if loss.abs() > IMPLAUSIBLE
            || first.is_some_and(|first| 0.0 < first && first < loss / DIVERGED)
        {
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
        self.fit.plan.has_warned_of_divergence = true;
        self.warn(text);
    }

    /// Requests a stop once `max_time` has elapsed.
    #[inline]
    pub(super) fn check_deadline(&mut self) {
        if let Some(deadline) = self.fit.plan.deadline
            && self.requests.stop.is_none()
            && Instant::now() >= deadline
        {
            let time = self.settings.max_time.unwrap_or_default();
            self.requests.is_of_clock = true;
            self.requests.stop = Some(format!("`max_time` of {time:?} was reached"));
        }
    }
}

impl Run {
    /// The size of the window that the next batch belongs to.
    fn window_size(&self) -> u64 {
        if self.fit.window.filled == 0 {
            self.settings.accumulate_in(self.progress.counters.epoch)
        } else {
            self.fit.window.size
        }
    }

    /// Whether the next batch fills the window.
    pub(super) fn fills_window(&self) -> bool {
        self.fit.window.filled + 1 >= self.window_size()
    }

    /// Adds the current batch to the window, and determines whether it is the last of the window.
    pub(super) fn fill_window(&mut self) {
        let (ends_pass, size) = (self.ends_pass(), self.window_size());
        let window = &mut self.fit.window;
        window.size = size;
        window.filled += 1;
        window.is_last_micro_batch = window.filled >= window.size || window.is_last_of_pass || ends_pass;
        self.model.optimizers.next_batch();
    }

    /// Starts a new window if the current batch, which is done, was the last of its window.
    pub(super) fn leave_window(&mut self) {
        if self.fit.window.is_last_micro_batch {
            self.fit.window.filled = 0;
        }
    }

    /// Drops the accumulated gradients and starts a new window.
    pub(super) fn drop_window(&mut self) -> crate::Result<()> {
        self.fit.window = AccumulationWindow::default();
        self.model.optimizers.zero_grad()
    }
}
