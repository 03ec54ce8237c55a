//! One pass over data: batch by batch, up to its limit.

use tch::Device;

use super::decide::{Decision, NextBatch, decide};
use super::window;
use crate::checkpoint::progress::{LoopPosition, Stage};
use crate::data::{Batch, Batches, Loader, PassNotes};
use crate::error::{Error, Result};
use crate::libtorch;
use crate::phase::Phase;
use crate::profile;
use crate::run::{Run, tape};

/// The batches of one pass.
pub(super) struct Pass<'a, B> {
    batches: Batches<'a, B>,
    /// An upper bound on the batches that are left.
    left: u64,
    /// Whether no batch of the pass has been returned yet, not even before a resume.
    is_new: bool,
    /// The next batch, if it was already drawn.
    ahead: Option<Option<Result<B>>>,
    /// The batch after that, if it was already drawn.
    second: Option<Option<Result<B>>>,
    /// What the loader says about the batches.
    notes: Option<PassNotes>,
}

impl<'a, B: Batch> Pass<'a, B> {
    /// Begins a pass over the batches of a loader in this epoch, or resumes one after `resumed`
    /// batches.
    pub(super) fn begin(
        run: &mut Run,
        loader: &'a mut dyn Loader<B>,
        epoch: u64,
        resumed: Option<u64>,
    ) -> Result<Self> {
        let known = loader.len();
        let left = limit_in(run, run.place.phase, known)?;
        let start = resumed.unwrap_or(0);
        run.progress.counters.batch_idx = start;
        run.progress.batches = batches_of(known, left);
        loader.share(run.ranks.world.share())?;
        let notes = loader.notes();
        if let Some(notes) = &notes {
            notes.clear();
        }
        let stream = run.fit.stream_mut(run.place.phase);
        stream.notes.clone_from(&notes);
        if let (Some(batch), Some(position)) = (resumed, stream.resumed.take()) {
            loader.seek(epoch, batch, &position)?;
        }
        if resumed.is_none() {
            run.log.get_mut().restart(run.place.phase);
        }
        let left = left.unwrap_or(u64::MAX).saturating_sub(start);
        let batches = draw(run, || loader.batches(epoch, start))??;
        Ok(Pass { batches, left, is_new: start == 0, ahead: None, second: None, notes })
    }

    /// [Decides](Run::decide) whether the pass goes on, and returns its next batch; `None` at its
    /// end. `weigh` returns the weight of a batch.
    ///
    /// # Errors
    ///
    /// Returns the error of the loader, or an error if the pass has no batch at all, or if the run
    /// was cancelled.
    pub(super) fn next(
        &mut self,
        run: &mut Run,
        weigh: &mut dyn FnMut(&mut Run, &B) -> Result<f64>,
    ) -> Result<Option<B>> {
        loop {
            let done = run.progress.counters.batch_idx;
            match run.place.phase {
                Phase::Train => {
                    let begun = LoopPosition { stage: Stage::Training, ..LoopPosition::default() };
                    run.fit.position = LoopPosition { train: done, ..begun };
                }
                _ => run.fit.position.valid = done,
            }
            if let Some(notes) = &self.notes {
                notes.forget_before(done);
            }
            let next = if run.ranks.world.is_solo() { None } else { Some(self.look(run, weigh)?) };
            let decision = decide(run, next)?;
            let is_window_open = run.place.phase == Phase::Train && run.fit.window.filled > 0;
            // An open accumulation window gets one more batch, which ends it.
            if decision != Decision::Go && !is_window_open {
                run.requests.is_cut_short |= decision == Decision::Stop;
                return Ok(None);
            }
            let batch = self.take(run)?;
            run.ranks.random_before_draw = None;
            if batch.is_some() || !run.ranks.others_have_batches {
                return Ok(batch);
            }
        }
    }

    /// Describes the next batch for the other ranks. Draws it ahead.
    #[cold]
    fn look(
        &mut self,
        run: &mut Run,
        weigh: &mut dyn FnMut(&mut Run, &B) -> Result<f64>,
    ) -> Result<NextBatch> {
        let is_train = run.place.phase == Phase::Train;
        run.ranks.random_before_draw =
            if self.ahead.is_some() { None } else { Some(libtorch::random_state(Device::Cpu)?) };
        run.ranks.is_borrowed = self.is_borrowed(run);
        let mut next = NextBatch::default();
        match self.peek(run) {
            None => {}
            // The error is returned when the batch is taken.
            Some(Err(_)) => next.exists = true,
            Some(Ok(batch)) => {
                next.exists = true;
                if !run.ranks.is_borrowed {
                    next.samples = batch.samples().unwrap_or(1) as f64;
                    next.weight = if is_train { weigh(run, batch)? } else { next.samples };
                }
            }
        }
        next.is_last = is_train && next.exists && !window::is_filled_by_next(run) && self.is_second_last(run);
        Ok(next)
    }

    fn take(&mut self, run: &mut Run) -> Result<Option<B>> {
        let next = match self.ahead.take() {
            Some(next) => {
                self.ahead = self.second.take();
                next
            }
            None => self.draw(run),
        };
        let is_first = std::mem::take(&mut self.is_new);
        match next {
            None if is_first => Err(no_batch()),
            next => next.transpose(),
        }
    }

    /// Whether no batch is left. Draws the next one to find out; [`next`](Pass::next) returns it,
    /// or its error.
    pub(super) fn is_last(&mut self, run: &mut Run) -> bool {
        if self.ahead.is_none() {
            self.ahead = Some(self.draw(run));
        }
        matches!(self.ahead, Some(None))
    }

    /// Returns a reference to the next batch, without advancing.
    fn peek(&mut self, run: &mut Run) -> Option<&Result<B>> {
        if self.ahead.is_none() {
            self.ahead = Some(self.draw(run));
        }
        self.ahead.as_ref().and_then(Option::as_ref)
    }

    /// Whether no batch follows the next one, which was [peeked](Pass::peek).
    fn is_second_last(&mut self, run: &mut Run) -> bool {
        if self.second.is_none() {
            self.second = Some(self.draw(run));
        }
        matches!(self.second, Some(None))
    }

    /// Whether the next batch has no row for this rank. Peeks at the batch.
    fn is_borrowed(&mut self, run: &mut Run) -> bool {
        let index = run.progress.counters.batch_idx;
        self.peek(run).is_some() && self.notes.as_ref().is_some_and(|notes| notes.is_borrowed(index))
    }

    fn draw(&mut self, run: &mut Run) -> Option<Result<B>> {
        self.left = self.left.checked_sub(1)?;
        let drawn = draw(run, || self.batches.next()).unwrap_or_else(|error| Some(Err(error)));
        if let Some(notes) = &self.notes {
            notes.take_warnings().into_iter().for_each(|warning| run.warn_on_any_rank(warning));
        }
        drawn
    }
}

/// Runs `draw`, which waits for a loader, within the profile and the tape.
fn draw<R>(run: &mut Run, draw: impl FnOnce() -> R) -> Result<R> {
    tape::data(run, |run| profile::data(run, draw))
}

/// The limit on the batches of a pass in this phase, given the number that the loader reports.
fn limit_in(run: &Run, phase: Phase, known: Option<u64>) -> Result<Option<u64>> {
    let limit =
        run.settings.limit(phase).map(|(limit, setting)| limit.batches(known, setting).map_err(Error::usage));
    let sanity = (phase == Phase::Sanity).then_some(run.settings.sanity_batches);
    Ok(limit.transpose()?.into_iter().chain(sanity).min())
}

/// The number of batches in a pass, if it is known.
fn batches_of(known: Option<u64>, limit: Option<u64>) -> Option<u64> {
    known.into_iter().chain(limit).min()
}

/// The number of batches in an epoch of training, if it is known.
pub(super) fn batches_of_epoch(run: &Run, known: Option<u64>) -> Result<Option<u64>> {
    Ok(batches_of(known, limit_in(run, Phase::Train, known)?))
}

fn no_batch() -> Error {
    Error::usage(
        "the loader yielded no batches: check that it has data, and with `drop_last` at least one full batch; a closure \
         passed to `from_fn` must return a new iterator for each epoch",
    )
}
