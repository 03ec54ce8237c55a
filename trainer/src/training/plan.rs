//! How far a `fit` goes, and which batches make one optimizer step.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::limit::Every;
use super::settings::Settings;
use crate::run::Run;

/// Where a fit is: what a resumed one goes on with.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) struct LoopPosition {
    pub(crate) stage: Stage,
    /// Batches of the pass over the training data that are behind it.
    pub(crate) train: u64,
    /// The same of the validation.
    pub(crate) valid: u64,
}

/// What a fit is doing.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) enum Stage {
    /// The check before training.
    SanityCheck,
    /// Nothing of an epoch: it is before, between or after them.
    #[default]
    BetweenEpochs,
    /// The pass over the training data.
    Training,
    /// A validation in the middle of that.
    ValidatingWithin,
    /// The validation after it.
    Validating,
}

/// When a fit began: in the counters of the run, and by the clock.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(from = "SavedStart", into = "SavedStart")]
pub(crate) struct FitStart {
    pub(crate) epochs: u64,
    pub(crate) steps: u64,
    at: Instant,
    /// How long the fit had taken when it was resumed.
    before: Duration,
}

/// A [`FitStart`] in a checkpoint.
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

    /// How long it has taken.
    pub(crate) fn spent(&self) -> Duration {
        self.before.saturating_add(self.at.elapsed())
    }
}

/// The state of the current fit. A checkpoint stores what a resumed fit continues with.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct FitState {
    /// Whether a fit is running, not another entry.
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

/// How far the current `fit` goes, in the counters of the run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Plan {
    /// How many epochs there are when it ends.
    pub(crate) epochs: Option<u64>,
    /// How many optimizer steps.
    steps: Option<u64>,
    /// How many there will have been, where that can be known.
    pub(crate) planned_steps: Option<u64>,
    /// When it is stopped.
    deadline: Option<Instant>,
    /// Before so many epochs no stop is heard.
    min_epochs: u64,
    /// Nor before so many optimizer steps.
    min_steps: u64,
    /// Whether the fit was given validation data, and a validation comes due before its planned end.
    pub(crate) validates: bool,
    /// The warning about a mean loss that is NaN was printed in this fit.
    warned_of_nan: bool,
}

impl Plan {
    /// What the settings make of a fit, with so many batches in an epoch, and with validation data or without.
    pub(super) fn begin(run: &Run, batches: Option<u64>, has_validation: bool) -> Self {
        let Settings { min_epochs, max_steps, min_steps, max_time, .. } = &run.settings;
        let epochs = run.settings.planned_epochs();
        let FitStart { epochs: begun, steps, at, before } = run.fit.start;
        let epochs = epochs.map(|epochs| begun.saturating_add(epochs));
        let of_epochs = epochs.zip(batches).map(|(epochs, batches)| {
            let of_each = run.settings.steps_of(begun..epochs, batches);
            steps.saturating_add(of_each.saturating_mul(run.model.optimizers.count()))
        });
        let max_steps = max_steps.map(|max| steps.saturating_add(max));
        let planned_steps = of_epochs.into_iter().chain(max_steps).min();
        let comes_due = match run.settings.validate_every {
            Some(Every::Steps(n)) => planned_steps.is_none_or(|planned| planned / n > steps / n),
            // `n` epochs are no more than a fit has: the builder checks that.
            Some(Every::Epochs(_) | Every::Fraction(_)) | None => true,
        };
        Plan {
            epochs,
            steps: max_steps,
            validates: has_validation && comes_due,
            planned_steps,
            deadline: max_time.and_then(|time| at.checked_add(time.saturating_sub(before))),
            warned_of_nan: false,
            min_epochs: begun.saturating_add(*min_epochs),
            min_steps: steps.saturating_add(*min_steps),
        }
    }
}

impl Run {
    /// Was the run asked to stop, and has it trained as long as it must?
    pub(super) fn is_stopped(&self) -> bool {
        self.requests.stop.is_some()
            && self.progress.epochs_done >= self.fit.plan.min_epochs
            && self.progress.counters.optimizer_steps >= self.fit.plan.min_steps
    }

    /// Has it taken all of its optimizer steps?
    pub(super) fn has_all_steps(&self) -> bool {
        self.fit.plan.steps.is_some_and(|steps| self.progress.counters.optimizer_steps >= steps)
    }

    /// Has it trained all of its epochs?
    pub(super) fn has_all_epochs(&self) -> bool {
        self.fit.plan.epochs.is_some_and(|epochs| self.progress.epochs_begun >= epochs)
    }

    /// Has it trained all of its epochs, or steps, or was it stopped?
    pub(super) fn is_over(&self) -> bool {
        self.has_all_epochs() || self.has_all_steps() || self.is_stopped()
    }

    /// Is the pass over the training data to end here?
    pub(super) fn ends_pass(&self) -> bool {
        self.requests.end_epoch || self.has_all_steps() || self.is_stopped()
    }

    /// Warns once in a fit if the mean loss of the pass over the training data that is over is NaN.
    pub(super) fn warn_of_nan(&mut self) {
        let is_nan = || self.log.metrics.get("train/loss").is_some_and(f64::is_nan);
        if !self.fit.plan.warned_of_nan && is_nan() {
            self.fit.plan.warned_of_nan = true;
            eprintln!(
                "warning: the mean training loss of epoch {} is NaN: if the weights are NaN too, nothing more is learned; \
                 `.hook(trainer::hooks::NanGuard::fail())` ends the run at the first such batch, before it reaches the weights",
                self.progress.counters.epoch
            );
        }
    }

    /// Asks for a stop when the time is up.
    #[inline]
    pub(super) fn check_deadline(&mut self) {
        if let Some(deadline) = self.fit.plan.deadline
            && self.requests.stop.is_none()
            && Instant::now() >= deadline
        {
            let time = self.settings.max_time.unwrap_or_default();
            self.requests.is_of_clock = true;
            self.requests.stop = Some(format!("it has taken {time:?}, which is its `max_time`"));
        }
    }
}

/// The batches whose gradients the next optimizer step takes.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub(crate) struct AccumulationWindow {
    /// How many there are to be.
    pub(crate) size: u64,
    /// How many there are, the current one included.
    pub(crate) filled: u64,
    /// The current batch is the last of its pass.
    pub(crate) last: bool,
    /// The optimizer steps with the current batch.
    pub(crate) closes: bool,
}

impl Run {
    /// How large the window is to be that the next batch is in.
    fn window_size(&self) -> u64 {
        if self.fit.window.filled == 0 {
            self.settings.accumulate_in(self.progress.counters.epoch)
        } else {
            self.fit.window.size
        }
    }

    /// Does the next batch fill it?
    pub(super) fn fills_window(&self) -> bool {
        self.fit.window.filled + 1 >= self.window_size()
    }

    /// One more batch that trains.
    pub(super) fn fill_window(&mut self) {
        let (ends_pass, size) = (self.ends_pass(), self.window_size());
        let window = &mut self.fit.window;
        window.size = size;
        window.filled += 1;
        window.closes = window.filled >= window.size || window.last || ends_pass;
        self.model.optimizers.next_batch();
    }

    /// The batch is done.
    pub(super) fn leave_window(&mut self) {
        if self.fit.window.closes {
            self.fit.window.filled = 0;
        }
    }

    /// Drops what was gathered.
    pub(super) fn drop_window(&mut self) -> crate::Result<()> {
        self.fit.window = AccumulationWindow::default();
        self.model.optimizers.zero_grad()
    }
}
