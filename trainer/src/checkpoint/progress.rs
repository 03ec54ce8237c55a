//! The counters of the loop, and the position of a fit in the loop. Checkpoints store both.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::data::PassNotes;
use crate::moments::counters::Counters;
use crate::moments::phase::Phase;

/// The counters of the loop, over all fits. Checkpoints store them.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(crate) struct LoopState {
    pub(crate) counters: Counters,
    /// The number of the current batch, counted from 1. In training, batches are counted over all
    /// epochs; otherwise, they are counted within the pass.
    pub(crate) batch_number: u64,
    /// The number of batches drawn for training, including skipped ones.
    pub(crate) train_batches: u64,
    /// The number of batches in the current pass, if known.
    pub(crate) batches: Option<u64>,
    /// The number of epochs that have begun.
    pub(crate) epochs_begun: u64,
    /// The number of epochs that have ended.
    pub(crate) epochs_done: u64,
    /// The number of fits that have begun.
    pub(crate) fits_begun: u64,
    /// A description of each roll-back in the current fit.
    #[serde(default)]
    pub(crate) roll_backs: Vec<String>,
}

impl LoopState {
    /// Begins a fit that does not resume. The remainder of an epoch that ended early is not
    /// trained.
    pub(crate) fn begin_fit(&mut self) -> FitStart {
        self.roll_backs.clear();
        self.epochs_done = self.epochs_begun;
        FitStart::now(self.epochs_begun, self.counters.optimizer_steps, Duration::ZERO)
    }

    /// Begins the next epoch.
    pub(crate) fn begin_epoch(&mut self) {
        self.counters.epoch = self.epochs_begun;
        self.counters.batch_idx = 0;
        self.epochs_begun += 1;
    }

    /// Begins an epoch of a trial: the next one.
    pub(crate) fn begin_trial(&mut self) {
        self.counters.epoch = self.epochs_begun;
        self.counters.batch_idx = 0;
        self.batches = None;
    }
}

/// The position of a fit in the loop, from which a resumed fit continues.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) struct LoopPosition {
    pub(crate) stage: Stage,
    /// The number of batches that are done in the pass over the training data.
    pub(crate) train: u64,
    /// The number of batches that are done in the validation pass over the loader `loader`.
    pub(crate) valid: u64,
    /// The index of the validation loader that is in use.
    #[serde(default)]
    pub(crate) loader: u64,
    /// For a validation within an epoch, the number of optimizer steps before the last training
    /// batch began.
    #[serde(default)]
    pub(crate) steps_before: u64,
}

impl LoopPosition {
    /// Begins a batch after `done` batches of a pass.
    #[inline]
    pub(crate) fn begin_batch(&mut self, is_train: bool, done: u64) {
        if is_train {
            *self = LoopPosition { stage: Stage::Training, train: done, ..LoopPosition::default() };
        } else {
            self.valid = done;
        }
    }
}

/// The part of the loop that a fit is in.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) enum Stage {
    /// The sanity check before training.
    SanityCheck,
    /// Outside of any epoch: before the first, between two, or after the last.
    #[default]
    BetweenEpochs,
    /// The pass over the training data.
    Training,
    /// A validation within the pass over the training data.
    ValidatingWithin,
    /// The validation after the pass over the training data.
    Validating,
}

/// The start of a fit: the counters of the run at that time, and the clock.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(from = "SavedStart", into = "SavedStart")]
pub(crate) struct FitStart {
    pub(crate) epochs: u64,
    pub(crate) steps: u64,
    pub(crate) at: Instant,
    /// The duration of the fit before it was resumed.
    pub(crate) before: Duration,
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

    /// Returns the duration of the fit so far, including the time before it was resumed.
    pub(crate) fn spent(&self) -> Duration {
        self.before.saturating_add(self.at.elapsed())
    }
}

/// The state of the current fit. A checkpoint stores the fields that a resumed fit needs.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct FitState {
    /// Whether the current entry point is a `fit` that has begun or resumed.
    #[serde(skip)]
    pub(crate) is_running: bool,
    /// Whether a step is running, or has ended with an error, so that a checkpoint written now
    /// cannot be resumed exactly.
    #[serde(skip)]
    pub(crate) failed_mid_step: bool,
    #[serde(skip)]
    pub(crate) plan: FitPlan,
    pub(crate) start: FitStart,
    pub(crate) position: LoopPosition,
    pub(crate) window: AccumulationWindow,
    /// The weights of the batches in the current pass over the training data.
    #[serde(default)]
    pub(crate) weighed: Weighed,
    /// The fingerprints of the training and the validation data.
    pub(crate) data: [String; 2],
    /// The positions of the training and the validation loader.
    #[serde(default)]
    pub(crate) streams: [StreamPosition; 2],
}

/// The position from which a loader continues, if it cannot be computed from the batch number.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(transparent)]
pub(crate) struct StreamPosition {
    /// The position that a checkpoint contains; `None` once the resumed pass has begun.
    pub(crate) resumed: Option<String>,
    /// The notes of the current pass.
    #[serde(skip)]
    pub(crate) notes: Option<PassNotes>,
}

impl FitState {
    /// Returns the position of the training or the validation loader, depending on the phase.
    pub(crate) fn stream_mut(&mut self, phase: Phase) -> &mut StreamPosition {
        &mut self.streams[usize::from(phase != Phase::Train)]
    }

    /// Returns a copy for a checkpoint, with the positions of the loaders.
    pub(crate) fn with_positions(&self) -> FitState {
        let mut fit = self.clone();
        for (stream, batch) in fit.streams.iter_mut().zip([self.position.train, self.position.valid]) {
            if let Some(notes) = &stream.notes {
                stream.resumed = notes.position(batch);
            }
        }
        fit
    }
}

impl Default for FitState {
    fn default() -> Self {
        FitState {
            is_running: false,
            failed_mid_step: false,
            plan: FitPlan::default(),
            start: FitStart::now(0, 0, Duration::ZERO),
            position: LoopPosition::default(),
            window: AccumulationWindow::default(),
            weighed: Weighed::default(),
            data: [String::new(), String::new()],
            streams: [StreamPosition::default(), StreamPosition::default()],
        }
    }
}

/// Which weights the batches of a pass have had so far.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(from = "SavedWeights", into = "SavedWeights")]
pub(crate) enum Weighed {
    /// No batch was processed.
    None,
    /// Every batch had weight 0.
    Without,
    /// A batch had a weight above 0. The batches of a pass in an old checkpoint are not known, so
    /// one of them may have had a weight.
    #[default]
    With,
}

/// [`Weighed`] as a checkpoint stores it.
#[derive(Deserialize, Serialize)]
struct SavedWeights {
    without: bool,
    with: bool,
}

impl From<SavedWeights> for Weighed {
    fn from(SavedWeights { without, with }: SavedWeights) -> Self {
        match (with, without) {
            (true, _) => Weighed::With,
            (false, true) => Weighed::Without,
            (false, false) => Weighed::None,
        }
    }
}

impl From<Weighed> for SavedWeights {
    fn from(weighed: Weighed) -> Self {
        SavedWeights { without: weighed == Weighed::Without, with: weighed == Weighed::With }
    }
}

impl Weighed {
    /// Adds a batch.
    pub(crate) fn add(&mut self, weight: f64, is_skipped: bool) {
        if weight > 0.0 {
            *self = Weighed::With;
        } else if *self == Weighed::None && !is_skipped {
            *self = Weighed::Without;
        }
    }
}

/// The planned length of the current fit. All limits are absolute values of the run's counters.
#[derive(Clone, Debug, Default)]
pub(crate) struct FitPlan {
    /// The number of epochs at which the fit ends.
    pub(crate) epochs: Option<u64>,
    /// The number of optimizer steps at which the fit ends.
    pub(crate) max_steps: Option<u64>,
    /// The number of optimizer steps at the end of the fit, if it is known.
    pub(crate) planned_steps: Option<u64>,
    /// The number of optimizer steps that the task takes for a batch.
    pub(crate) steps_per_batch: u64,
    /// The time at which the fit is stopped.
    pub(crate) deadline: Option<Instant>,
    /// Stop requests are ignored until this number of epochs has ended.
    pub(crate) min_epochs: u64,
    /// Stop requests are ignored until this number of optimizer steps is reached.
    pub(crate) min_steps: u64,
    /// Whether the fit has validation data, and validates at least once before its planned end.
    pub(crate) validates: bool,
    /// The named validation loaders: the name of each, and whether the fit uses it before its
    /// planned end.
    pub(crate) loaders: Vec<(Arc<str>, bool)>,
    /// Why validation loaders are never used before the planned end. Reported after the first
    /// optimizer step, which shows whether the task takes as many steps as planned.
    pub(crate) unused: Vec<String>,
    /// The loaders whose wrong length this fit has already reported.
    pub(crate) wrong_lengths: Vec<String>,
    /// Whether this fit has already warned that the mean loss has diverged or is not finite.
    pub(crate) has_warned_of_divergence: bool,
}

impl FitPlan {
    /// Notes that a loader has a wrong length. Returns whether that was not known.
    pub(crate) fn notes_wrong_length(&mut self, loader: String) -> bool {
        let is_new = !self.wrong_lengths.contains(&loader);
        if is_new {
            self.wrong_lengths.push(loader);
        }
        is_new
    }

    /// Takes the warnings about validation loaders that the fit never uses. There are none if a
    /// batch with `steps` optimizer steps shows that the fit has more steps than planned.
    pub(crate) fn take_unused(&mut self, steps: u64) -> Vec<String> {
        let unused = std::mem::take(&mut self.unused);
        if steps <= self.steps_per_batch { unused } else { Vec::new() }
    }
}

/// Gradient accumulation: the batches whose gradients the next optimizer step uses.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub(crate) struct AccumulationWindow {
    /// The number of batches in a full window.
    size: u64,
    /// The number of batches in the window so far, including the current one.
    filled: u64,
    #[serde(skip)]
    end: WindowEnd,
}

/// Where a window ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum WindowEnd {
    /// After the current batch, as far as it is known.
    #[default]
    Later,
    /// With the current batch, which is the last of its pass and not in the window yet.
    WithPass,
    /// With the current batch, so that an optimizer step follows it.
    Here,
}

impl AccumulationWindow {
    /// Whether the window has begun and has not ended.
    pub(crate) fn is_open(self) -> bool {
        self.filled > 0
    }

    /// Whether the current batch ends the window.
    #[inline]
    pub(crate) fn ends_here(self) -> bool {
        self.end == WindowEnd::Here
    }

    /// Whether the next batch fills the window. `full` is the size of a window that begins with it.
    #[inline]
    pub(crate) fn is_filled_by_next(self, full: u64) -> bool {
        self.filled + 1 >= if self.is_open() { self.size } else { full }
    }

    /// Whether the batch that has begun ends the window, as far as it is known.
    #[inline]
    pub(crate) fn will_end(self, full: u64) -> bool {
        self.end == WindowEnd::WithPass || self.is_filled_by_next(full)
    }

    /// Begins a batch.
    #[inline]
    pub(crate) fn begin_batch(&mut self, is_last_of_pass: bool) {
        self.end = if is_last_of_pass { WindowEnd::WithPass } else { WindowEnd::Later };
    }

    /// Adds the current batch, and determines whether it is the last of the window.
    pub(crate) fn add_batch(&mut self, full: u64, ends_pass: bool) {
        let ends = ends_pass || self.will_end(full);
        if !self.is_open() {
            self.size = full;
        }
        self.filled += 1;
        self.end = if ends { WindowEnd::Here } else { WindowEnd::Later };
    }

    /// Begins a new window if the current batch ends this one.
    pub(crate) fn end_batch(&mut self) {
        if self.ends_here() {
            self.filled = 0;
        }
    }

    /// Whether the numbers are possible.
    pub(crate) fn is_sound(self, is_count: impl Fn(u64) -> bool) -> bool {
        self.filled <= self.size.max(1) && is_count(self.size)
    }
}
