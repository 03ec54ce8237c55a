//! How far a `fit` goes, and which batches make one optimizer step.

use std::time::Instant;

use super::settings::Settings;
use crate::run::Run;

/// How far the current `fit` goes, in the counters of the run.
#[derive(Debug, Default)]
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
}

impl Plan {
    /// What the settings make of a fit that begins now, with so many batches in an epoch.
    pub(super) fn begin(run: &Run, batches: Option<u64>) -> Self {
        let Settings { epochs, min_epochs, max_steps, min_steps, max_time, .. } = &run.settings;
        let is_bounded = max_steps.is_some() || max_time.is_some();
        let epochs = epochs.or((!is_bounded).then_some(1));
        let (begun, steps) = (run.epochs_begun, run.step.optimizer_step);
        let epochs = epochs.map(|epochs| begun.saturating_add(epochs));
        let of_epochs = epochs.zip(batches).map(|(epochs, batches)| {
            let of_each = run.settings.steps_of(begun..epochs, batches);
            steps.saturating_add(of_each.saturating_mul(run.optimizers.count()))
        });
        let max_steps = max_steps.map(|max| steps.saturating_add(max));
        Plan {
            epochs,
            steps: max_steps,
            planned_steps: of_epochs.into_iter().chain(max_steps).min(),
            deadline: max_time.and_then(|time| Instant::now().checked_add(time)),
            min_epochs: run.epochs_done.saturating_add(*min_epochs),
            min_steps: steps.saturating_add(*min_steps),
        }
    }
}

impl Run {
    /// Was the run asked to stop, and has it trained as long as it must?
    pub(super) fn is_stopped(&self) -> bool {
        self.requests.stop.is_some()
            && self.epochs_done >= self.plan.min_epochs
            && self.step.optimizer_step >= self.plan.min_steps
    }

    /// Has it taken all of its optimizer steps?
    pub(super) fn has_all_steps(&self) -> bool {
        self.plan.steps.is_some_and(|steps| self.step.optimizer_step >= steps)
    }

    /// Has it trained all of its epochs, or steps, or was it stopped?
    pub(super) fn is_over(&self) -> bool {
        self.plan.epochs.is_some_and(|epochs| self.epochs_begun >= epochs)
            || self.has_all_steps()
            || self.is_stopped()
    }

    /// Is the pass over the training data to end here?
    pub(super) fn ends_pass(&self) -> bool {
        self.requests.end_epoch || self.has_all_steps() || self.is_stopped()
    }

    /// Asks for a stop when the time is up.
    #[inline]
    pub(super) fn look_at_the_clock(&mut self) {
        if let Some(deadline) = self.plan.deadline
            && self.requests.stop.is_none()
            && Instant::now() >= deadline
        {
            let time = self.settings.max_time.unwrap_or_default();
            self.requests.stop = Some(format!("it has taken {time:?}, which is its `max_time`"));
        }
    }
}

/// The batches whose gradients the next optimizer step takes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Window {
    /// How many there are to be.
    pub(crate) size: u64,
    /// How many there are, the current one included.
    pub(crate) filled: u64,
    /// The current batch is the last of its pass.
    pub(super) last: bool,
    /// The optimizer steps with the current batch.
    pub(crate) closes: bool,
}

impl Run {
    /// One more batch that trains.
    pub(super) fn fill_window(&mut self) {
        let ends_pass = self.ends_pass();
        let size = self.settings.accumulate_in(self.step.epoch);
        let window = &mut self.window;
        if window.filled == 0 {
            window.size = size;
        }
        window.filled += 1;
        window.closes = window.filled >= window.size || window.last || ends_pass;
    }

    /// The batch is done.
    pub(super) fn leave_window(&mut self) {
        if self.window.closes {
            self.window.filled = 0;
        }
    }

    /// Drops what was gathered.
    pub(super) fn drop_window(&mut self) -> crate::Result<()> {
        self.window = Window::default();
        self.optimizers.zero_grad()
    }
}
