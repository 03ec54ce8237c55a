//! One pass over data: batch by batch, up to its limit.

use tch::Device;

use super::agreement::NextBatch;
use super::decide::{Before, Decision, decide};
use super::ranks::{PassLength, agree_on_length};
use crate::checkpoint::progress::FitState;
use crate::checkpoint::progress::{LoopPosition, Stage};
use crate::data::{Batch, Batches, Loader, PassNotes};
use crate::error::{Error, Result};
use crate::hook::call::Loop;
use crate::libtorch;
use crate::moments::counters::Counters;
use crate::phase::Phase;
use crate::run::layers::Target;
use crate::run::settings::Settings;
use crate::run::{Amount, Run, Upcoming};

/// The batches of one pass.
pub(super) struct Pass<'a, B> {
    batches: Batches<'a, B>,
    /// An upper bound on the number of batches that are left.
    left: u64,
    /// The number of batches that the loaders of all ranks have announced, if it is known.
    announced: Option<u64>,
    /// The maximum number of batches that a setting allows.
    limit: Option<u64>,
    /// Whether the loader has no further batch.
    has_ended: bool,
    /// Whether the pass was ended before the loader had no further batch.
    is_cut: bool,
    /// Whether no batch of the pass has been returned yet, not even before a resume.
    is_new: bool,
    /// The next batch, if it was already drawn.
    ahead: Option<Option<Result<B>>>,
    /// The batch after the next one, if it was already drawn.
    second: Option<Option<Result<B>>>,
    /// The information from the loader about the batches.
    notes: Option<PassNotes>,
    /// The batch that this rank processes, with a weight of 0, while only other ranks have a batch.
    stand_in: StandIn<B>,
}

/// A copy of the first batch of a pass, which a rank processes again once its own data has ended.
enum StandIn<B> {
    /// This rank has had no batch, or trains alone.
    None,
    /// The type of the batches does not implement `Batch::try_clone`.
    NoCopy,
    Copy(B),
}

impl<B: Batch> StandIn<B> {
    fn of(batch: &B) -> Self {
        batch.try_clone().map_or(StandIn::NoCopy, StandIn::Copy)
    }
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
        loader.share(run.world().share())?;
        let PassLength { known, is_equal } = agree_on_length(run.world(), loader.len())?;
        let phase = run.phase();
        run.hooks().table.wake(phase);
        let limit = limit_in(run.settings(), phase, known)?;
        let start = resumed.unwrap_or(0);
        run.progress_mut().counters.batch_idx = start;
        run.progress_mut().batches = batches_of(known, limit);
        let stand_in = if start == 0 || is_equal { StandIn::None } else { first_of(loader, epoch)? };
        let notes = loader.notes();
        if let Some(notes) = &notes {
            notes.clear();
        }
        let stream = run.fit_mut().stream_mut(phase);
        stream.notes.clone_from(&notes);
        if let (Some(batch), Some(position)) = (resumed, stream.resumed.take()) {
            loader.seek(epoch, batch, &position)?;
        }
        if resumed.is_none() {
            run.logs_mut().restart(phase);
        }
        let left = limit.unwrap_or(u64::MAX).saturating_sub(start);
        let batches = draw(run, || loader.batches(epoch, start))??;
        Ok(Pass {
            batches,
            left,
            announced: known,
            limit,
            has_ended: false,
            is_cut: false,
            is_new: start == 0,
            ahead: None,
            second: None,
            notes,
            stand_in,
        })
    }

    /// [Decides](decide) whether the pass continues. Returns its next batch, or `None` at its end.
    /// `weigh` returns the weight and the number of samples of a batch.
    ///
    /// # Errors
    ///
    /// Returns the error of the loader, or an error if the pass has no batch at all, or if the run
    /// was cancelled.
    pub(super) fn next(
        &mut self,
        run: &mut Run,
        weigh: &mut dyn FnMut(&mut Run, &B) -> Result<Amount>,
    ) -> Result<Option<B>> {
        let done = run.counters().batch_idx;
        match run.phase() {
            Phase::Train => {
                let begun = LoopPosition { stage: Stage::Training, ..LoopPosition::default() };
                run.fit_mut().position = LoopPosition { train: done, ..begun };
            }
            _ => run.fit_mut().position.valid = done,
        }
        if let Some(notes) = &self.notes {
            notes.forget_before(done);
        }
        let next = if run.is_solo() { None } else { Some(self.look(run, weigh)?) };
        let decision = decide(run, Before::Batch(next))?;
        self.is_cut = decision == Decision::End;
        let mut batch = if self.is_cut { None } else { self.take(run)? };
        run.ranks_mut().random_before_draw = None;
        if batch.is_none() && !self.is_cut && run.ranks().upcoming != Upcoming::None {
            run.ranks_mut().is_borrowed = true;
            let copy = self.copy_of_first(run.world().rank());
            batch = Some(copy.map_err(|error| run.locate(error))?);
        }
        if batch.is_none() {
            self.check_length(run);
        } else if run.phase() == Phase::Train {
            // Drawing a batch ahead is only necessary if this batch does not fill the window.
            let is_last = decision == Decision::GoOnce
                || !is_filled_by_next(run.fit(), run.settings(), run.counters()) && self.is_last(run);
            run.fit_mut().window.begin_batch(is_last);
        }
        Ok(batch)
    }

    /// Whether a request or a setting has ended the pass, apart from its limit.
    pub(super) fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// Whether the pass has had as many batches as a setting allows.
    pub(super) fn has_reached_limit(&self, done: u64) -> bool {
        self.limit.is_some_and(|limit| done >= limit)
    }

    /// Warns, once for each loader of an entry point, if the number of batches was not the
    /// announced one.
    #[cold]
    fn check_length(&self, run: &mut Run) {
        let Some(announced) = self.announced else { return };
        let done = run.counters().batch_idx;
        let is_short = self.has_ended && run.progress().batches.is_some_and(|batches| done < batches);
        if !is_short && done <= announced {
            return;
        }
        let phase = run.phase();
        let of = run.loader().map_or_else(|| format!("of `{}`", phase.name()), |name| format!("`{name}`"));
        let reported = &mut run.fit_mut().plan.wrong_lengths;
        if reported.contains(&of) {
            return;
        }
        let used = if phase == Phase::Train {
            ", from which schedules, validation by fraction and remaining times are computed"
        } else {
            ""
        };
        let more = if is_short { "delivered" } else { "has delivered" };
        let text = format!(
            "the loader {of} announced {announced} batches{used}, but {more} {done} in a pass: correct its length (`Loader::len`, \
             `.with_len({done})`), or leave the length out"
        );
        reported.push(of);
        run.reports().warn(text);
    }

    /// Returns the batch that this rank processes while only other ranks have data.
    #[cold]
    fn copy_of_first(&self, rank: u32) -> Result<B> {
        let why = match &self.stand_in {
            StandIn::Copy(first) => match first.try_clone() {
                Some(batch) => return Ok(batch),
                None => "its batches cannot be copied: implement `Batch::try_clone` for them",
            },
            StandIn::NoCopy => "its batches cannot be copied: implement `Batch::try_clone` for them",
            StandIn::None => "it has had no batch in this pass: give each rank at least one",
        };
        Err(Error::usage(format!(
            "rank {rank} has no data left, but other ranks have another batch, so this rank would have to process a copy of its first \
             batch with a weight of 0, which is not possible, because {why}, or use loaders that yield the same number of batches on all ranks"
        )))
    }

    /// Draws the next batch in advance, and describes it for the other ranks.
    #[cold]
    fn look(
        &mut self,
        run: &mut Run,
        weigh: &mut dyn FnMut(&mut Run, &B) -> Result<Amount>,
    ) -> Result<NextBatch> {
        let is_train = run.phase() == Phase::Train;
        run.ranks_mut().random_before_draw =
            if self.ahead.is_some() { None } else { Some(libtorch::random_state(Device::Cpu)?) };
        run.ranks_mut().is_borrowed = self.is_borrowed(run);
        let mut next = NextBatch::default();
        match self.peek(run) {
            None => {}
            // The error is returned when the batch is taken.
            Some(Err(_)) => next.exists = true,
            Some(Ok(batch)) => {
                next.exists = true;
                next.amount = weigh(run, batch)?;
            }
        }
        next.is_last = is_train
            && !is_filled_by_next(run.fit(), run.settings(), run.counters())
            && (!next.exists || self.is_second_last(run));
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
        if let Some(Ok(batch)) = &next
            && matches!(self.stand_in, StandIn::None)
            && !run.is_solo()
        {
            self.stand_in = StandIn::of(batch);
        }
        match next {
            None if is_first && run.ranks().upcoming == Upcoming::None => Err(no_batch()),
            next => next.transpose(),
        }
    }

    /// Whether no batch is left on any rank. Draws the next batch to find out; [`next`](Pass::next)
    /// then returns this batch, or the error of the loader.
    fn is_last(&mut self, run: &mut Run) -> bool {
        if !run.is_solo() {
            return run.ranks().upcoming == Upcoming::Last; // the ranks have agreed on it
        }
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
        let index = run.counters().batch_idx;
        self.peek(run).is_some() && self.notes.as_ref().is_some_and(|notes| notes.is_borrowed(index))
    }

    fn draw(&mut self, run: &mut Run) -> Option<Result<B>> {
        self.left = self.left.checked_sub(1)?;
        let drawn = draw(run, || self.batches.next()).unwrap_or_else(|error| Some(Err(error)));
        if drawn.is_none() {
            self.left = 0;
            self.has_ended = true;
        }
        if let Some(notes) = &self.notes {
            notes.take_warnings().into_iter().for_each(|warning| run.reports().warn_on_any_rank(warning));
        }
        drawn
    }
}

/// Returns a copy of the first batch of an epoch, for a pass that resumes after this batch. Leaves
/// libtorch's random state unchanged, because the pass has already drawn the batch. A loader that
/// yields different batches each time is not read again: the next batch of the pass is then copied
/// instead.
fn first_of<B: Batch>(loader: &mut dyn Loader<B>, epoch: u64) -> Result<StandIn<B>> {
    if !loader.is_deterministic() {
        return Ok(StandIn::None);
    }
    let random = libtorch::random_state(Device::Cpu)?;
    let first = loader.batches(epoch, 0)?.next().transpose()?;
    libtorch::set_random_state(Device::Cpu, &random)?;
    Ok(first.map_or(StandIn::None, |first| StandIn::of(&first)))
}

/// Runs `draw`, which waits for a loader, between what the layers run.
fn draw<R>(run: &mut Run, draw: impl FnOnce() -> R) -> Result<R> {
    run.layered(Target::Loader, |_| Ok(draw()))
}

/// Whether the next batch fills its accumulation window.
fn is_filled_by_next(fit: &FitState, settings: &Settings, counters: Counters) -> bool {
    fit.window.is_filled_by_next(settings.accumulate_in(counters.epoch))
}

/// Returns the maximum number of batches of a pass in this phase, if there is one. `known` is the
/// number of batches that the loader reports.
fn limit_in(settings: &Settings, phase: Phase, known: Option<u64>) -> Result<Option<u64>> {
    let limit =
        settings.limit(phase).map(|(limit, setting)| limit.batches(known, setting).map_err(Error::usage));
    let sanity = (phase == Phase::Sanity).then_some(settings.sanity_batches);
    Ok(limit.transpose()?.into_iter().chain(sanity).min())
}

/// The number of batches in a pass, if it is known.
fn batches_of(known: Option<u64>, limit: Option<u64>) -> Option<u64> {
    known.into_iter().chain(limit).min()
}

/// The number of batches in an epoch of training, if it is known.
pub(super) fn batches_of_epoch(settings: &Settings, known: Option<u64>) -> Result<Option<u64>> {
    Ok(batches_of(known, limit_in(settings, Phase::Train, known)?))
}

fn no_batch() -> Error {
    Error::usage(
        "the loader yielded no batches: check that it has data, and with `drop_last` at least one full batch; a closure \
         passed to `from_fn` must return a new iterator for each epoch",
    )
}
