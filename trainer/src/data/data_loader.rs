//! [`DataLoader`]: a loader for a [`Dataset`], with worker threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::batch_sampler::{BatchSampler, reserve};
use super::collate::Collate;
use super::dataset::Dataset;
use super::fingerprint::or_unknown;
use super::loader::{Batches, Loader};
use super::notes::PassNotes;
use super::prefetch::{assert_depth, depth_in};
use super::prefetch_pool::{BatchSender, PrefetchPool};
use super::rng::RowRng;
use crate::distributed::Share;
use crate::error::{Error, Result};
use crate::values::facts::SettingList;

/// The maximum number of threads that a pass may start.
const MAX_WORKERS: usize = 1024;

/// The default number of batches that each worker prefetches.
const PREFETCH_PER_WORKER: usize = 2;

/// The maximum number of damaged rows that warnings name in a pass.
const NAMED_DAMAGES: usize = 100;

/// Yields batches of the rows of a [`Dataset`], and can produce them on worker threads.
///
/// Use this when your data is a [`Dataset`]: rows that are read, decoded or augmented on demand, or
/// values in a `Vec`. For tensors in memory, [`InMemory`](super::InMemory) is simpler.
///
/// The batches and their order do not depend on the number of workers or ranks, nor on the batch at
/// which a pass starts: each row draws its random numbers from its own generator, which depends on
/// the seed, the epoch and the position of the row in the epoch.
///
/// ```
/// use trainer::prelude::*;
///
/// let images: Vec<(Vec<f32>, i64)> = vec![(vec![0.0; 784], 7); 100];
/// let train = DataLoader::new(images)
///     .batch_size(32)
///     .shuffle(42)
///     .drop_last(true)
///     .workers(2)
///     .prefetch(4);
/// assert_eq!(train.len(), Some(3));
/// ```
///
/// The threads start and end with each pass, however the pass ends. A thread that is producing a
/// batch finishes it first. An error or a panic on a thread is returned instead of the batch that
/// caused it.
#[derive(Debug)]
pub struct DataLoader<D> {
    dataset: Arc<D>,
    sampler: BatchSampler,
    seed: Option<u64>,
    workers: usize,
    depth: Option<usize>,
    skips_damaged: bool,
    notes: PassNotes,
    /// The index of the batch that the next pass starts with, set by `seek`. Unlike the number of
    /// the batch, the index counts batches that were left out. `None` if the two are the same.
    sought: Option<usize>,
}

impl<D: Dataset> DataLoader<D> {
    /// Creates a loader with batch size 1 that keeps the order of the data and produces the batches
    /// on the thread that iterates over them.
    #[must_use]
    pub fn new(dataset: D) -> Self {
        let sampler = BatchSampler::new(dataset.len());
        DataLoader {
            dataset: Arc::new(dataset),
            sampler,
            seed: None,
            workers: 0,
            depth: None,
            skips_damaged: false,
            notes: PassNotes::default(),
            sought: None,
        }
    }

    /// Sets the number of rows per batch. The last batch of an epoch may have fewer. Defaults to 1.
    ///
    /// # Panics
    ///
    /// Panics if `rows` is 0.
    #[must_use]
    #[track_caller]
    pub fn batch_size(mut self, rows: usize) -> Self {
        self.sampler.set_batch_size(rows);
        self
    }

    /// Shuffles the rows in each epoch. The order depends only on the seed and the epoch. Unless
    /// the data set has its own [order](Dataset::order), the order is the same as in an
    /// [`InMemory`](super::InMemory) loader with the same seed.
    #[must_use]
    pub fn shuffle(mut self, seed: u64) -> Self {
        self.sampler.seed = Some(seed);
        self
    }

    /// Sets the seed of the rows' random number generators. Defaults to the seed of
    /// [`shuffle`](DataLoader::shuffle), or 0.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Drops the last batch of an epoch if it is incomplete. Off by default.
    #[must_use]
    pub fn drop_last(mut self, drop: bool) -> Self {
        self.sampler.drop_last = drop;
        self
    }

    /// Sets the number of threads that produce the batches. Defaults to 0: the batches are produced
    /// on the thread that iterates over them.
    ///
    /// A pass starts no more threads than it has batches. A pass that would start more than 1,024
    /// threads returns an error.
    #[doc(alias = "num_workers")]
    #[must_use]
    pub fn workers(mut self, threads: usize) -> Self {
        self.workers = threads;
        self
    }

    /// Unlike [`Loader::prefetch`], which wraps any loader, sets the depth of this loader's
    /// workers: limits how many batches all of them together produce ahead of the current batch;
    /// each worker always produces at least one. Defaults to two per worker. Without
    /// [`workers`](DataLoader::workers), the loader starts one worker.
    ///
    /// As with [`Loader::prefetch`], a pass that would produce more than 65,536 batches ahead
    /// returns an error.
    ///
    /// # Panics
    ///
    /// Panics if `depth` is 0.
    #[must_use]
    #[track_caller]
    pub fn prefetch(mut self, depth: usize) -> Self {
        assert_depth(depth);
        self.depth = Some(depth);
        self
    }

    /// Leaves out rows that cannot be produced, instead of ending the run with an error. Warnings
    /// name the first 100 of them in each epoch. Off by default.
    ///
    /// A batch with damaged rows is smaller. A batch whose rows are all damaged is left out on all
    /// ranks. A rank whose own rows of a batch are all damaged borrows a row from another rank.
    #[must_use]
    pub fn skip_damaged(mut self, skip: bool) -> Self {
        self.skips_damaged = skip;
        self
    }

    /// Returns the [`RowPass`] that produces the rows of an epoch.
    pub(super) fn pass(&self, epoch: u64) -> Result<RowPass<D>> {
        if !self.skips_damaged {
            self.dataset.check()?;
        }
        let order = self.dataset.order(epoch, self.sampler.seed)?;
        if let Some(order) = &order
            && order.len() != self.sampler.rows()
        {
            return Err(Error::usage(format!(
                "`Dataset::order` returned {} indices: expected one for each of the {} rows of the data set",
                order.len(),
                self.sampler.rows()
            )));
        }
        Ok(RowPass {
            dataset: Arc::clone(&self.dataset),
            order,
            rows: self.sampler.rows(),
            seed: self.seed.or(self.sampler.seed).unwrap_or(0),
            epoch,
            notes: self.skips_damaged.then(|| self.notes.clone()),
            damaged: AtomicUsize::new(0),
        })
    }

    /// Calls `make` with each of `items` on the threads of this loader, and returns the results in
    /// order.
    pub(super) fn produce<T: Send + 'static>(
        &self,
        items: std::ops::Range<usize>,
        make: impl Fn(usize) -> Result<T> + Send + Sync + 'static,
    ) -> Result<Box<dyn Iterator<Item = Result<T>>>> {
        let workers = self.workers.max(usize::from(self.depth.is_some())).min(items.len());
        if workers == 0 {
            return Ok(Box::new(items.map(make)));
        }
        if workers > MAX_WORKERS {
            return Err(Error::usage(format!(
                "`.workers({})` would start {workers} threads: expected at most {MAX_WORKERS}",
                self.workers
            )));
        }
        let depth = depth_in(self.depth.unwrap_or(workers * PREFETCH_PER_WORKER), Some(items.len()))?;
        let make = Arc::new(make);
        let producers = (0..workers).map(|nth| {
            let make = Arc::clone(&make);
            let own = items.clone().skip(nth).step_by(workers);
            move |sender: &BatchSender<T>| sender.send_all(own.map(|item| make(item)))
        });
        Ok(Box::new(PrefetchPool::start(depth, producers.collect())?))
    }

    pub(super) fn shared_notes(&self) -> &PassNotes {
        &self.notes
    }

    pub(super) fn set_share(&mut self, share: Share) {
        self.sampler.set_share(share);
    }

    pub(super) fn sampler(&self) -> &BatchSampler {
        &self.sampler
    }

    /// Returns the settings of the rows and of the threads that produce them.
    pub(super) fn settings_of_rows(&self) -> SettingList {
        self.sampler.settings().with("workers", self.workers).with_optional("prefetch", self.depth)
    }

    /// Describes everything that determines the rows.
    pub(super) fn fingerprint_of_rows(&self) -> String {
        or_unknown(self.dataset.fingerprint())
            + ": "
            + &self.sampler.fingerprint()
            + &self.seed.map(|seed| format!(", seed {seed}")).unwrap_or_default()
    }
}

impl<D> Loader<<D::Row as Collate>::Batch> for DataLoader<D>
where
    D: Dataset<Row: Collate>,
{
    fn batches(&mut self, epoch: u64, start: u64) -> Result<Batches<'_, <D::Row as Collate>::Batch>> {
        let pass = self.pass(epoch)?;
        let sampler = self.sampler.clone();
        let first = self.sought.take().map_or(start, |sought| sought as u64);
        let made =
            self.produce(self.sampler.batches_from(first), move |index| pass.batch(&sampler, index))?;
        let notes = self.notes.clone();
        let follows_positions = self.skips_damaged;
        let mut nth = start;
        Ok(Box::new(made.filter_map(move |made| match made {
            Ok(Made { batch: None, .. }) => None,
            Err(error) => Some(Err(error)),
            Ok(Made { index, batch: Some(batch), is_borrowed }) => {
                if is_borrowed {
                    notes.set_borrowed(nth);
                }
                nth += 1;
                if follows_positions {
                    notes.set_position(nth, (index + 1).to_string());
                }
                Some(Ok(batch))
            }
        })))
    }

    fn share(&mut self, share: Share) -> Result<()> {
        self.sampler.set_share(share);
        Ok(())
    }

    fn notes(&self) -> Option<PassNotes> {
        (self.skips_damaged || self.sampler.notes.is_some()).then(|| self.notes.clone())
    }

    fn seek(&mut self, _epoch: u64, batch: u64, position: &str) -> Result<()> {
        let index = position.parse().map_err(|_| {
            Error::usage(format!(
                "the position of batch {batch} in the checkpoint is {position:?}: expected a number"
            ))
        })?;
        self.sought = Some(index);
        Ok(())
    }

    fn len(&self) -> Option<u64> {
        Some(self.sampler.count() as u64)
    }

    fn fingerprint(&self) -> Option<String> {
        Some(self.fingerprint_of_rows())
    }

    fn settings(&self) -> SettingList {
        self.settings_of_rows()
    }
}

/// The result of a worker for one batch.
struct Made<B> {
    /// The number of the batch, counting batches that are left out.
    index: usize,
    /// The batch, or `None` if all its rows are damaged.
    batch: Option<B>,
    is_borrowed: bool,
}

/// Produces the rows of one epoch. The workers share it.
pub(super) struct RowPass<D> {
    dataset: Arc<D>,
    order: Option<Vec<usize>>,
    rows: usize,
    seed: u64,
    epoch: u64,
    /// The notes for warnings about damaged rows; `None` if a damaged row is an error.
    notes: Option<PassNotes>,
    /// The number of damaged rows so far.
    damaged: AtomicUsize,
}

impl<D: Dataset> RowPass<D> {
    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    /// Produces the row at this position in the epoch. Returns `None` if the row is damaged and
    /// left out.
    pub(super) fn row(&self, position: usize) -> Result<Option<D::Row>> {
        let index = self.order.as_ref().map_or(position, |order| order[position]);
        let row = self.dataset.row(index, &mut RowRng::new(self.seed, self.epoch, position));
        let (Err(error), Some(notes)) = (&row, &self.notes) else { return row.map(Some) };
        match self.damaged.fetch_add(1, Ordering::Relaxed) {
            before if before < NAMED_DAMAGES => notes.warn(format!("skipped a damaged row: {error}")),
            NAMED_DAMAGES => notes.warn(format!(
                "more than {NAMED_DAMAGES} damaged rows in epoch {}: the others are skipped without a warning",
                self.epoch
            )),
            _ => {}
        }
        Ok(None)
    }

    fn rows_at(&self, positions: impl Iterator<Item = usize>) -> Result<Vec<D::Row>> {
        let mut rows = Vec::new();
        reserve(&mut rows, positions.size_hint().0)?;
        for position in positions {
            rows.extend(self.row(position)?);
        }
        Ok(rows)
    }
}

impl<D: Dataset<Row: Collate>> RowPass<D> {
    /// Produces the batch with this index.
    fn batch(&self, sampler: &BatchSampler, index: usize) -> Result<Made<<D::Row as Collate>::Batch>> {
        let own = sampler.rows_of(index);
        let mut is_borrowed = sampler.is_borrowed(index);
        let mut rows = self.rows_at(own.clone())?;
        if rows.is_empty() {
            // All rows of this rank are damaged: use another row of the batch, with a weight of 0.
            is_borrowed = true;
            let others = sampler.all_rows_of(index).filter(|position| !own.contains(position));
            for position in others {
                rows.extend(self.row(position)?);
                if !rows.is_empty() {
                    break;
                }
            }
        }
        let batch = if rows.is_empty() { None } else { Some(D::Row::collate(rows)?) };
        Ok(Made { index, batch, is_borrowed })
    }
}
