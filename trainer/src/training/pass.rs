//! One pass over data: batch by batch, up to its limit.

use std::collections::VecDeque;

use tch::Device;

use super::agreement::NextBatch;
use super::batch_weight::{amount, without_weight};
use super::decide::{Before, Decision, decide};
use super::ranks::{PassLength, agree_on_length};
use super::task::Task;
use super::{modules, records};
use crate::checkpoint::progress::{LoopState, Weighed};
use crate::data::{Batch, Batches, Loader, PassNotes};
use crate::error::{Error, Result};
use crate::hook::call::Loop;
use crate::libtorch;
use crate::log::Joined;
use crate::moments::counters::Counters;
use crate::phase::Phase;
use crate::run::layers::Target;
use crate::run::{Amount, Run};

/// One pass over the batches of a loader. It has the run until it ends.
pub(super) struct Pass<'a, B> {
    pub(super) run: &'a mut Run,
    batches: Batches<'a, B>,
    /// An upper bound on the number of batches that are left to draw.
    left: u64,
    /// The next batches that were drawn already; `None` at the end of the data.
    ahead: VecDeque<Option<Result<B>>>,
    /// The number of batches that the loaders of all ranks have announced, if it is known.
    announced: Option<u64>,
    /// The maximum number of batches that a setting allows.
    limit: Option<u64>,
    /// Whether the loader has no further batch.
    has_ended: bool,
    /// Whether the pass was ended before the loader had no further batch.
    is_cut: bool,
    /// The information from the loader about the batches.
    notes: Option<PassNotes>,
    /// The batch that this rank processes, with a weight of 0, while only other ranks have a batch.
    stand_in: StandIn<B>,
}

/// A batch that is about to be processed.
pub(super) struct Drawn<B> {
    pub(super) batch: B,
    /// Its weight and its number of samples over all ranks, if they have agreed on it.
    pub(super) of_ranks: Option<Amount>,
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
        run: &'a mut Run,
        loader: &'a mut dyn Loader<B>,
        epoch: u64,
        resumed: Option<u64>,
    ) -> Result<Self> {
        loader.share(run.world().share())?;
        let PassLength { known, is_equal } = agree_on_length(run.world(), loader.len())?;
        let phase = run.phase();
        run.hooks().table.wake(phase);
        let (limit, batches) = run.settings().batches_of(phase, known)?;
        let start = resumed.unwrap_or(0);
        run.progress_mut().counters.batch_idx = start;
        run.progress_mut().batches = batches;
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
        let batches = run.layered(Target::Loader, |_| Ok::<_, Error>(loader.batches(epoch, start)))??;
        Ok(Pass {
            run,
            batches,
            left,
            ahead: VecDeque::with_capacity(2),
            announced: known,
            limit,
            has_ended: false,
            is_cut: false,
            notes,
            stand_in,
        })
    }

    /// [Decides](decide) whether the pass continues. Returns its next batch, or `None` at its end.
    ///
    /// # Errors
    ///
    /// Returns the error of the loader, or an error if the pass has no batch at all, or if the run
    /// was cancelled.
    pub(super) fn next<T: Task<Batch = B>>(&mut self) -> Result<Option<Drawn<B>>> {
        let done = self.run.counters().batch_idx;
        let is_train = self.run.phase() == Phase::Train;
        self.run.fit_mut().position.begin_batch(is_train, done);
        if let Some(notes) = &self.notes {
            notes.forget_before(done);
        }
        let own = if self.run.world().is_solo() { None } else { Some(self.look::<T>()?) };
        let Decision { goes_on, ends_window, next } = decide(self.run, Before::Batch(own))?;
        self.run.ranks_mut().random_before_draw = None;
        self.is_cut = !goes_on;
        let Some(batch) = (if goes_on { self.take(next)? } else { None }) else {
            self.check_length();
            return Ok(None);
        };
        if is_train {
            let is_last = ends_window
                || match next {
                    Some(next) => next.is_last,
                    // Drawing a batch ahead is only necessary if this one does not fill the window.
                    None => {
                        !self.fills_window() && {
                            self.draw_ahead(1);
                            self.ahead[0].is_none()
                        }
                    }
                };
            self.run.fit_mut().window.begin_batch(is_last);
        }
        Ok(Some(Drawn { batch, of_ranks: next.map(|next| next.amount) }))
    }

    /// Ends the pass, and reduces what was logged in it. `weighed` are the weights of its batches.
    ///
    /// # Errors
    ///
    /// Returns an error if the pass trained nothing, because every batch had weight 0.
    pub(super) fn end(self, weighed: Weighed) -> Result<()> {
        let Pass { run, limit, is_cut, .. } = self;
        let Counters { epoch, batch_idx, .. } = run.counters();
        let phase = run.phase();
        let is_without = match phase {
            Phase::Sanity | Phase::Predict => false,
            Phase::Train => weighed == Weighed::Without && !is_cut,
            Phase::Valid | Phase::Test => {
                !run.world().any("the weights of an evaluation", weighed == Weighed::With)?
                    && weighed == Weighed::Without
            }
        };
        if is_without {
            let text = without_weight(phase, epoch, run.at().loader());
            // If a limit ended the pass, later batches may have a weight.
            if phase == Phase::Train && limit.is_none_or(|limit| batch_idx < limit) {
                return Err(Error::usage(text));
            }
            run.reports().warn(text);
        }
        modules::warn_of_uncalled(phase, run.hooks(), run.modules(), run.reports());
        records::flush(run)?;
        run.join_logs(phase, Joined::Pass)?;
        run.logs_mut().finish(phase)
    }

    /// Warns if the number of batches was not the announced one.
    #[cold]
    fn check_length(&mut self) {
        let Some(announced) = self.announced else { return };
        let LoopState { counters: Counters { batch_idx: done, .. }, batches, .. } = *self.run.progress();
        let is_short = self.has_ended && batches.is_some_and(|batches| done < batches);
        if !is_short && done <= announced {
            return;
        }
        let phase = self.run.phase();
        let loader = self.run.at().loader();
        let of = loader.map_or_else(|| format!("of `{}`", phase.name()), |name| format!("`{name}`"));
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
        if self.run.fit_mut().plan.notes_wrong_length(of) {
            self.run.reports().warn(text);
        }
    }

    /// Returns the batch that this rank processes while only other ranks have data.
    #[cold]
    fn copy_of_first(&self) -> Result<B> {
        if let StandIn::Copy(first) = &self.stand_in
            && let Some(batch) = first.try_clone()
        {
            return Ok(batch);
        }
        let why = match self.stand_in {
            StandIn::None => "it has had no batch in this pass: give each rank at least one",
            _ => "its batches cannot be copied: implement `Batch::try_clone` for them",
        };
        Err(self.run.locate(Error::usage(format!(
            "rank {} has no data left, but other ranks have another batch, so this rank would have to process a copy of its first \
             batch with a weight of 0, which is not possible, because {why}, or use loaders that yield the same number of batches on \
             all ranks",
            self.run.world().rank()
        ))))
    }

    /// Draws the next batch in advance, and describes it for the other ranks.
    #[cold]
    fn look<T: Task<Batch = B>>(&mut self) -> Result<NextBatch> {
        self.run.ranks_mut().random_before_draw =
            if self.ahead.is_empty() { Some(libtorch::random_state(Device::Cpu)?) } else { None };
        self.draw_ahead(1);
        let exists = self.ahead[0].is_some();
        let index = self.run.counters().batch_idx;
        self.run.ranks_mut().is_borrowed =
            exists && self.notes.as_ref().is_some_and(|notes| notes.is_borrowed(index));
        if self.run.phase() != Phase::Train {
            return Ok(NextBatch { exists, ..NextBatch::default() });
        }
        let amount = match &self.ahead[0] {
            Some(Ok(batch)) => amount::<T>(self.run, batch)?,
            // The error is returned when the batch is taken.
            Some(Err(_)) | None => Amount::default(),
        };
        // A roll-back before the batch can empty the window.
        let may_not_fill = self.run.kept().is_some() || !self.fills_window();
        let is_last = may_not_fill && {
            self.draw_ahead(2);
            self.ahead[0].is_none() || self.ahead[1].is_none()
        };
        Ok(NextBatch { exists, is_last, amount })
    }

    /// Whether the next batch fills its accumulation window.
    fn fills_window(&self) -> bool {
        let Counters { epoch, .. } = self.run.counters();
        self.run.fit().window.is_filled_by_next(self.run.settings().accumulate_in(epoch))
    }

    /// Takes the next batch or, while only other ranks have one, a copy of the first batch. `next`
    /// is the next batch of all ranks.
    fn take(&mut self, next: Option<NextBatch>) -> Result<Option<B>> {
        let own = match self.ahead.pop_front() {
            Some(own) => own,
            None => self.draw(),
        };
        let own = own.transpose()?;
        match (&own, next) {
            (Some(batch), Some(_)) if matches!(self.stand_in, StandIn::None) => {
                self.stand_in = StandIn::of(batch);
            }
            (None, Some(next)) if next.exists => {
                self.run.ranks_mut().is_borrowed = true;
                return self.copy_of_first().map(Some);
            }
            (None, _) if self.run.counters().batch_idx == 0 => return Err(no_batch()),
            _ => {}
        }
        Ok(own)
    }

    /// Draws batches until this many are drawn ahead.
    fn draw_ahead(&mut self, count: usize) {
        while self.ahead.len() < count {
            let drawn = self.draw();
            self.ahead.push_back(drawn);
        }
    }

    fn draw(&mut self) -> Option<Result<B>> {
        self.left = self.left.checked_sub(1)?;
        let drawn = self.run.layered(Target::Loader, |_| Ok(self.batches.next()));
        let drawn = drawn.unwrap_or_else(|error| Some(Err(error)));
        if drawn.is_none() {
            self.left = 0;
            self.has_ended = true;
        }
        if let Some(notes) = &self.notes {
            notes.take_warnings().into_iter().for_each(|text| self.run.reports().warn_on_any_rank(text));
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

fn no_batch() -> Error {
    Error::usage(
        "the loader yielded no batches: check that it has data, and with `drop_last` at least one full batch; a closure \
         passed to `from_fn` must return a new iterator for each epoch",
    )
}
