//! [`DataLoader`]: the batches of a [`Dataset`], made on several threads.

use std::sync::Arc;

use super::ahead::{BatchSender, PrefetchPool};
use super::cut::{BatchSampler, numbers};
use super::dataset::Dataset;
use super::loader::{Batches, Loader};
use super::prefetch::{assert_depth, depth_in};
use super::rng::BatchRng;
use crate::error::{Error, Result};

/// How many threads a pass may start.
const MAX_WORKERS: usize = 1024;

/// So many batches ahead for each worker, where nothing else is said.
const AHEAD_EACH: usize = 2;

/// Yields the batches of a [`Dataset`], and makes them on background threads if it is told to.
///
/// The batches are the same, and in the same order, for any number of workers, and from any batch on: what is
/// random in a batch is drawn from a generator of its own, which depends on the seed, the epoch and the index of the batch.
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
/// let train = DataLoader::new(Images).batch_size(32).shuffle(42).drop_last(true).workers(2).prefetch(4);
/// assert_eq!(train.len(), Some(3));
/// ```
///
/// The threads begin with a pass and end with it, however it ends; one that is making a batch finishes that first. An
/// error or a panic on one of them arrives as an error, in the place of the batch that it was about.
#[derive(Debug)]
pub struct DataLoader<D> {
    dataset: Arc<D>,
    cut: BatchSampler,
    seed: Option<u64>,
    workers: usize,
    depth: Option<usize>,
}

impl<D: Dataset> DataLoader<D> {
    /// A loader of one sample a batch, in the order of the data, made on the thread that asks for them.
    #[must_use]
    pub fn new(dataset: D) -> Self {
        let cut = BatchSampler::new(dataset.len());
        DataLoader { dataset: Arc::new(dataset), cut, seed: None, workers: 0, depth: None }
    }

    /// So many samples a batch; the last may have fewer.
    ///
    /// # Panics
    ///
    /// When it is 0.
    #[must_use]
    #[track_caller]
    pub fn batch_size(mut self, samples: usize) -> Self {
        self.cut.set_batch_size(samples);
        self
    }

    /// Another order each epoch, which depends on the seed and the number of the epoch alone: that of
    /// [`InMemory`](super::InMemory) for the same seed.
    #[must_use]
    pub fn shuffle(mut self, seed: u64) -> Self {
        self.cut.seed = Some(seed);
        self
    }

    /// What the generators of the batches depend on; unless set, the seed of [`shuffle`](DataLoader::shuffle), or 0.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Leaves out the last batch of an epoch if it is not full.
    #[must_use]
    pub fn drop_last(mut self, drop: bool) -> Self {
        self.cut.drop_last = drop;
        self
    }

    /// Makes the batches on this many threads; defaults to 0, the thread that asks for them.
    ///
    /// A pass starts no more threads than it has batches. One that would start more than 1,024 is refused with an error.
    #[must_use]
    pub fn workers(mut self, threads: usize) -> Self {
        self.workers = threads;
        self
    }

    /// At most so many batches ahead of the one that is asked for, of all workers together, though at least one of each;
    /// unless set, two of each. Without [`workers`](DataLoader::workers) it is one worker.
    ///
    /// As for [`Loader::prefetch`], a pass that would be more than 65,536 batches ahead is refused with an error.
    ///
    /// # Panics
    ///
    /// When it is 0.
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
            cut: self.cut.clone(),
            order: self.cut.order(epoch, |row| row)?,
            seed: self.seed.or(self.cut.seed).unwrap_or(0),
            epoch,
        });
        let indices = self.cut.batches_from(start);
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
        let worker = |nth| {
            let (pass, own) = (Arc::clone(&pass), indices.clone().skip(nth).step_by(workers));
            move |outlet: &BatchSender<D::Batch>| outlet.put(own.map(|index| pass.batch(index)))
        };
        let depth = depth_in(self.depth.unwrap_or(workers * AHEAD_EACH), Some(indices.len()))?;
        Ok(Box::new(PrefetchPool::start(depth, (0..workers).map(worker).collect())?))
    }

    fn len(&self) -> Option<u64> {
        Some(self.cut.count() as u64)
    }

    fn fingerprint(&self) -> Option<String> {
        let noise = self.seed.map(|seed| format!(", noise by {seed}")).unwrap_or_default();
        Some(self.cut.fingerprint() + &noise)
    }
}

/// What the workers of one pass share.
struct Pass<D> {
    dataset: Arc<D>,
    cut: BatchSampler,
    order: Option<Vec<usize>>,
    seed: u64,
    epoch: u64,
}

impl<D: Dataset> Pass<D> {
    fn batch(&self, index: usize) -> Result<D::Batch> {
        let rows = self.cut.rows_of(index);
        let mut rng = BatchRng::of(self.seed, self.epoch, index);
        match &self.order {
            Some(order) => self.dataset.batch(&order[rows], &mut rng),
            None => self.dataset.batch(&numbers(rows, |row| row)?, &mut rng),
        }
    }
}
