//! One pass over data: batch by batch, up to its limit.

use crate::data::{Batch, Batches, Loader};
use crate::error::{Error, Result};
use crate::phase::Phase;
use crate::run::Run;

/// The batches of one pass.
pub(super) struct Pass<'a, B> {
    batches: Batches<'a, B>,
    /// How many are still to come at most.
    left: u64,
    /// No batch has been drawn.
    is_new: bool,
    /// The next one, drawn already.
    ahead: Option<Option<Result<B>>>,
}

impl<'a, B: Batch> Pass<'a, B> {
    /// Begins a pass over the batches that a loader has in this epoch, or goes on with one after so many of them.
    pub(super) fn begin(
        run: &mut Run,
        loader: &'a mut dyn Loader<B>,
        epoch: u64,
        resumed: Option<u64>,
    ) -> Result<Self> {
        let known = loader.len();
        let left = limit_in(run, run.progress.phase, known)?;
        let start = resumed.unwrap_or(0);
        run.progress.counters.batch_idx = start;
        run.progress.batches = batches_of(known, left);
        if resumed.is_none() {
            run.log.restart(run.progress.phase);
        }
        let left = left.unwrap_or(u64::MAX).saturating_sub(start);
        Ok(Pass { batches: loader.batches(epoch, start)?, left, is_new: start == 0, ahead: None })
    }

    /// The next batch.
    pub(super) fn next(&mut self) -> Result<Option<B>> {
        let next = match self.ahead.take() {
            Some(next) => next,
            None => self.draw(),
        };
        let is_first = std::mem::take(&mut self.is_new);
        match next {
            None if is_first => Err(no_batch()),
            next => next.transpose(),
        }
    }

    /// Was that the last? Draws one ahead to see; if that fails, it does when its turn comes.
    pub(super) fn is_last(&mut self) -> bool {
        if self.ahead.is_none() {
            self.ahead = Some(self.draw());
        }
        matches!(self.ahead, Some(None))
    }

    fn draw(&mut self) -> Option<Result<B>> {
        self.left = self.left.checked_sub(1)?;
        self.batches.next()
    }
}

/// How many batches a pass of a phase has at most, over a loader that may say how many it has.
fn limit_in(run: &Run, phase: Phase, known: Option<u64>) -> Result<Option<u64>> {
    let limit =
        run.settings.limit(phase).map(|(limit, setting)| limit.of(known, setting).map_err(Error::usage));
    let sanity = (phase == Phase::Sanity).then_some(run.settings.sanity_steps);
    Ok(limit.transpose()?.into_iter().chain(sanity).min())
}

fn batches_of(known: Option<u64>, limit: Option<u64>) -> Option<u64> {
    known.into_iter().chain(limit).min()
}

/// How many batches an epoch of training has, where that is known.
pub(super) fn batches_of_epoch(run: &Run, known: Option<u64>) -> Result<Option<u64>> {
    Ok(batches_of(known, limit_in(run, Phase::Train, known)?))
}

/// A pass over the data of a loader that does not train, with this for each batch.
pub(super) fn each_batch<B: Batch>(
    run: &mut Run,
    loader: &mut dyn Loader<B>,
    resumed: Option<u64>,
    each: &mut dyn FnMut(&mut Run, B) -> Result<()>,
) -> Result<()> {
    let mut pass = Pass::begin(run, loader, run.progress.counters.epoch, resumed)?;
    // A stop lets it finish: half of a validation would give a metric that is not what it says.
    loop {
        run.fit.position.valid = run.progress.counters.batch_idx;
        run.check_cancelled()?;
        if run.requests.end_epoch {
            break;
        }
        let Some(batch) = pass.next()? else { break };
        each(run, batch)?;
    }
    run.requests.end_epoch = false; // it was about this pass
    run.log.finish(run.progress.phase)
}

fn no_batch() -> Error {
    Error::usage(
        "the loader gave no batch: is there data in it, and with `drop_last` as much as one batch? \
         A closure of `from_fn` must return a new iterator for each epoch",
    )
}
