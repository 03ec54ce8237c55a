//! [`DataLoader`]: a loader for a [`Dataset`], with worker threads.

use std::sync::Arc;

use super::batch_sampler::{BatchSampler, row_numbers};
use super::dataset::Dataset;
use super::loader::{Batches, Borrowed, Loader};
use super::prefetch::{assert_depth, depth_in};
use super::prefetch_pool::{BatchSender, PrefetchPool};
use super::rng::BatchRng;
use crate::distributed::Share;
use crate::error::{Error, Result};

/// The maximum number of threads that a pass may start.
const MAX_WORKERS: usize = 1024;

/// The default number of batches that each worker prefetches.
const PREFETCH_PER_WORKER: usize = 2;

/// Yields the batches of a [`Dataset`], optionally produced on worker threads.
///
/// The batches and their order do not depend on the number of workers, nor on the batch that a pass
/// starts at: each batch draws its random numbers from its own generator, which depends on the
/// seed, the epoch, the index of the batch, and in several processes the rank.
///
/// ```
/// # use trainer::data::BatchRng;
/// use trainer::prelude::*;
/// # struct Images;
/// # impl Dataset for Images {
/// #     type Batch = Tensor;
/// #     fn len(&self) -> usize { 100 }
/// #     fn batch(&self, indices: &[usize], _: &mut BatchRng) -> Result<Tensor> {
/// #         Ok(Tensor::zeros([indices.len() as i64], (Kind::Float, Device::Cpu)))
/// #     }
/// # }
///
/// let train = DataLoader::new(Images)
///     .batch_size(32)
///     .shuffle(42)
///     .drop_last(true)
///     .workers(2)
///     .prefetch(4);
/// assert_eq!(train.len(), Some(3));
/// ```
///
/// The threads start and end with each pass, however the pass ends; batches that they are producing
/// are finished first. An error or a panic on a thread is returned in place of the batch that
/// caused it.
#[derive(Debug)]
pub struct DataLoader<D> {
    dataset: Arc<D>,
    sampler: BatchSampler,
    seed: Option<u64>,
    workers: usize,
    depth: Option<usize>,
}

impl<D: Dataset> DataLoader<D> {
    /// Creates a loader with batch size 1 that keeps the order of the data and produces the batches
    /// on the thread that iterates over them.
    #[must_use]
    pub fn new(dataset: D) -> Self {
        let sampler = BatchSampler::new(dataset.len());
        DataLoader { dataset: Arc::new(dataset), sampler, seed: None, workers: 0, depth: None }
    }

    /// Sets the number of samples per batch. The last batch of an epoch may have fewer. Defaults to
    /// 1.
    ///
    /// # Panics
    ///
    /// Panics if `samples` is 0.
    #[must_use]
    #[track_caller]
    pub fn batch_size(mut self, samples: usize) -> Self {
        self.sampler.set_batch_size(samples);
        self
    }

    /// Shuffles the samples in each epoch. The order depends only on the seed and the epoch, and is
    /// the same as in an [`InMemory`](super::InMemory) loader with the same seed.
    #[must_use]
    pub fn shuffle(mut self, seed: u64) -> Self {
        self.sampler.seed = Some(seed);
        self
    }

    /// Sets the seed of the batches' random number generators. Defaults to the seed of
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
    #[must_use]
    pub fn workers(mut self, threads: usize) -> Self {
        self.workers = threads;
        self
    }

    /// Limits how many batches all workers together produce ahead of the current one; each worker
    /// always produces at least one. Defaults to two per worker. Without
    /// [`workers`](DataLoader::workers), one worker is started.
    ///
    /// As for [`Loader::prefetch`], a pass that would produce more than 65,536 batches ahead
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
}

impl<D: Dataset> Loader<D::Batch> for DataLoader<D> {
    fn batches(&mut self, epoch: u64, start: u64) -> Result<Batches<'_, D::Batch>> {
        let pass = Arc::new(Pass {
            dataset: Arc::clone(&self.dataset),
            sampler: self.sampler.clone(),
            order: self.sampler.order(epoch, |row| row)?,
            seed: self.seed.or(self.sampler.seed).unwrap_or(0),
            epoch,
        });
        let indices = self.sampler.batches_from(start);
        let workers = self.workers.max(usize::from(self.depth.is_some())).min(indices.len());
        if workers == 0 {
            return Ok(Box::new(indices.map(move |index| pass.batch(index))));
        }
        if workers > MAX_WORKERS {
            return Err(Error::usage(format!(
                "`.workers({})` would start {workers} threads: expected at most {MAX_WORKERS}",
                self.workers
            )));
        }
        let depth = depth_in(self.depth.unwrap_or(workers * PREFETCH_PER_WORKER), Some(indices.len()))?;
        let workers = (0..workers).map(|nth| {
            let pass = Arc::clone(&pass);
            let own = indices.clone().skip(nth).step_by(workers);
            move |sender: &BatchSender<D::Batch>| sender.send_all(own.map(|index| pass.batch(index)))
        });
        Ok(Box::new(PrefetchPool::start(depth, workers.collect())?))
    }

    fn share(&mut self, share: Share) -> Result<()> {
        self.sampler.share = Some(share);
        Ok(())
    }

    fn borrowed(&self) -> Option<Borrowed> {
        self.sampler.borrowed()
    }

    fn len(&self) -> Option<u64> {
        Some(self.sampler.count() as u64)
    }

    fn fingerprint(&self) -> Option<String> {
        Some(self.sampler.fingerprint() + &self.seed.map(|seed| format!(", seed {seed}")).unwrap_or_default())
    }
}

/// The data that the workers of one pass share.
struct Pass<D> {
    dataset: Arc<D>,
    sampler: BatchSampler,
    order: Option<Vec<usize>>,
    seed: u64,
    epoch: u64,
}

impl<D: Dataset> Pass<D> {
    /// Produces the batch with this index.
    fn batch(&self, index: usize) -> Result<D::Batch> {
        let rows = self.sampler.rows_of(index);
        let rank = self.sampler.share.map_or(0, |share| share.rank);
        let mut rng = BatchRng::new(self.seed, self.epoch, index, rank);
        match &self.order {
            Some(order) => self.dataset.batch(&order[rows], &mut rng),
            None => self.dataset.batch(&row_numbers(rows, |row| row)?, &mut rng),
        }
    }
}
