//! The state of a fit: its position, its planned length, and its accumulation window.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::limit::Every;
use super::settings::Settings;
use crate::run::Run;

/// The position of a fit in the loop, from which a resumed fit continues.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) struct LoopPosition {
    pub(crate) stage: Stage,
    /// The number of batches that are done in the pass over the training data.
    pub(crate) train: u64,
    /// The number of batches that are done in the validation.
    pub(crate) valid: u64,
}

/// The part of the loop that a fit is in.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) enum Stage {
    /// The check before training.
    SanityCheck,
    /// Outside of any epoch: before the first, between two, or after the last.
    #[default]
    BetweenEpochs,
    /// The pass over the training data.
    Training,
    /// A validation in the middle of that pass.
    ValidatingWithin,
    /// The validation after that pass.
    Validating,
}

/// The start of a fit: the counters of the run at that time, and the clock.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(from = "SavedStart", into = "SavedStart")]
pub(crate) struct FitStart {
    pub(crate) epochs: u64,
    pub(crate) steps: u64,
    at: Instant,
    /// The time that the fit had spent before it was resumed.
    before: Duration,
}

/// A [`FitStart`] as a checkpoint stores it.
#[derive(Deserialize, Serialize)]
struct SavedStart {
    epochs: u64,
    steps: u64,
    spent: Duration,
}

impl From<FitStart> for SavedStart {
    fn from(start: FitStart) -> Self {
        SavedStart { epochs: start.epochs, steps: start.steps, spent: start.spent() }
    }
}

impl From<SavedStart> for FitStart {
    fn from(SavedStart { epochs, steps, spent }: SavedStart) -> Self {
        FitStart::now(epochs, steps, spent)
    }
}

impl FitStart {
    pub(crate) fn now(epochs: u64, steps: u64, before: Duration) -> Self {
        FitStart { epochs, steps, at: Instant::now(), before }
    }

    /// The time that the fit has spent so far, over all resumed parts.
    pub(crate) fn spent(&self) -> Duration {
        self.before.saturating_add(self.at.elapsed())
    }
}

/// The state of the current fit. A checkpoint stores what a resumed fit continues with.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct FitState {
    /// Whether a fit is running, and not another entry point.
    #[serde(skip)]
    pub(crate) is_running: bool,
    /// Whether a step failed half-way, so that a checkpoint taken now cannot be resumed exactly.
    #[serde(skip)]
    pub(crate) failed_mid_step: bool,
    #[serde(skip)]
    pub(crate) plan: Plan,
    pub(crate) start: FitStart,
    pub(crate) position: LoopPosition,
    pub(crate) window: AccumulationWindow,
    /// The fingerprints of the training and the validation data, if they are known.
    pub(crate) data: [Option<String>; 2],
}

impl Default for FitState {
    fn default() -> Self {
        FitState {
            is_running: false,
            failed_mid_step: false,
            plan: Plan::default(),
            start: FitStart::now(0, 0, Duration::ZERO),
            position: LoopPosition::default(),
            window: AccumulationWindow::default(),
            data: [None, None],
        }
    }
}

/// The planned length of the current fit. All limits are values that the counters of the run reach.
#[derive(Clone, Debug, Default)]
pub(crate) struct Plan {
    /// The number of epochs at which the fit ends.
    pub(crate) epochs: Option<u64>,
    /// The number of optimizer steps at which the fit ends.
    max_steps: Option<u64>,
    /// The number of optimizer steps at the end of the fit, if it is known.
    pub(crate) planned_steps: Option<u64>,
    /// The time at which the fit is stopped.
    deadline: Option<Instant>,
    /// Stop requests are ignored before this many epochs.
    min_epochs: u64,
    /// Stop requests are ignored before this many optimizer steps.
    min_steps: u64,
    /// Whether the fit was given validation data, and a validation comes due before its planned
    /// end.
    pub(crate) validates: bool,
    /// Whether this fit has printed its warning about a NaN mean loss.
    has_warned_of_nan: bool,
}

impl Plan {
    /// Plans a fit from the settings and, if it is known, the number of batches in an epoch.
    pub(super) fn new(run: &Run, batches: Option<u64>, has_validation: bool) -> Self {
        let Settings { min_epochs, max_steps, min_steps, max_time, .. } = &run.settings;
        let epochs = run.settings.planned_epochs();
        let FitStart { epochs: begun, steps, at, before } = run.fit.start;
        let epochs = epochs.map(|epochs| begun.saturating_add(epochs));
        let steps_of_epochs = epochs.zip(batches).map(|(epochs, batches)| {
            let of_each_optimizer = run.settings.steps_of(begun..epochs, batches);
            steps.saturating_add(of_each_optimizer.saturating_mul(run.model.optimizers.count()))
        });
        let max_steps = max_steps.map(|max| steps.saturating_add(max));
        let planned_steps = steps_of_epochs.into_iter().chain(max_steps).min();
        let comes_due = match run.settings.validate_every {
            Some(Every::Steps(n)) => planned_steps.is_none_or(|planned| planned / n > steps / n),
            // The builder checks that a fit has at least `n` epochs.
            Some(Every::Epochs(_) | Every::Fraction(_)) | None => true,
        };
        Plan {
            epochs,
            max_steps,
            validates: has_validation && comes_due,
            planned_steps,
            deadline: max_time.and_then(|time| at.checked_add(time.saturating_sub(before))),
            has_warned_of_nan: false,
            min_epochs: begun.saturating_add(*min_epochs),
            min_steps: steps.saturating_add(*min_steps),
        }
    }
}

impl Run {
    /// Whether a stop was requested and the minimum number of epochs and steps is reached.
    pub(super) fn is_stopped(&self) -> bool {
        self.requests.stop.is_some()
            && self.progress.epochs_done >= self.fit.plan.min_epochs
            && self.progress.counters.optimizer_steps >= self.fit.plan.min_steps
    }

    /// Whether the fit has taken all of its optimizer steps.
    pub(super) fn has_all_steps(&self) -> bool {
        self.fit.plan.max_steps.is_some_and(|steps| self.progress.counters.optimizer_steps >= steps)
    }

    /// Whether the fit has begun all of its epochs.
    pub(super) fn has_all_epochs(&self) -> bool {
        self.fit.plan.epochs.is_some_and(|epochs| self.progress.epochs_begun >= epochs)
    }

    /// Whether the fit trains no further epoch.
    pub(super) fn is_over(&self) -> bool {
        self.has_all_epochs() || self.has_all_steps() || self.is_stopped()
    }

    /// Whether the pass over the training data ends early: by request, or because all steps are
    /// taken.
    pub(super) fn ends_pass(&self) -> bool {
        self.requests.end_epoch || self.has_all_steps() || self.is_stopped()
    }

    /// Prints a warning, once per fit, if the mean loss of the training pass that just ended is
    /// NaN.
    pub(super) fn warn_of_nan(&mut self) {
        let is_nan = || self.log.metrics.get("train/loss").is_some_and(f64::is_nan);
        if !self.fit.plan.has_warned_of_nan && is_nan() {
            self.fit.plan.has_warned_of_nan = true;
            eprintln!(
                "warning: the mean training loss of epoch {} is NaN: if the weights are NaN too, nothing more is learned; \
                 `.hook(trainer::hooks::NanGuard::fail())` ends the run at the first such batch, before it reaches the weights",
                self.progress.counters.epoch
            );
        }
    }

    /// Requests a stop once `max_time` is over.
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

/// Gradient accumulation: the batches whose gradients the next optimizer step uses.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub(crate) struct AccumulationWindow {
    /// The number of batches in a full window.
    pub(crate) size: u64,
    /// The number of batches in the window so far, including the current one.
    pub(crate) filled: u64,
    /// Whether the current batch is the last of its pass.
    pub(crate) is_last_of_pass: bool,
    /// Whether an optimizer step follows the current batch.
    pub(crate) is_last_micro_batch: bool,
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

    /// Adds the current batch to the window.
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
