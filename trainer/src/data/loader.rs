//! [`Loader`]: what yields the batches of an epoch.

use std::fmt;
use std::marker::PhantomData;

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use tch::Tensor;

use super::batch::Batch;
use super::rows::Rows;
use crate::error::{Error, Result};

/// The batches of one pass.
pub type Batches<'a, B> = Box<dyn Iterator<Item = Result<B>> + 'a>;

/// Yields the batches of an epoch, from any of them on.
#[diagnostic::on_unimplemented(
    message = "this loader does not yield `{B}`",
    label = "yields other batches than the task's `Batch`",
    note = "the task wants `{B}`: see the `type Batch` of its `impl Task`; `Supervised` wants `(Tensor, Tensor)`"
)]
pub trait Loader<B: Batch> {
    /// The batches of an epoch, from the one of index `start` on. The same epoch is the same batches.
    ///
    /// # Errors
    ///
    /// What keeps the pass from beginning.
    fn batches(&mut self, epoch: u64, start: u64) -> Result<Batches<'_, B>>;

    /// How many batches an epoch has, where that is known.
    fn len(&self) -> Option<u64> {
        None
    }

    /// Is it known that there is no batch?
    fn is_empty(&self) -> bool {
        self.len() == Some(0)
    }
}

macro_rules! through {
    ($($pointer:ty),+) => {$(
        impl<B: Batch, L: Loader<B> + ?Sized> Loader<B> for $pointer {
            fn batches(&mut self, epoch: u64, start: u64) -> Result<Batches<'_, B>> {
                (**self).batches(epoch, start)
            }

            fn len(&self) -> Option<u64> {
                (**self).len()
            }
        }
    )+};
}

through!(&mut L, Box<L>);

/// Tensors in memory, cut into batches along their first dimension.
///
/// ```
/// use tch::{Device, Kind, Tensor};
/// use trainer::prelude::*;
///
/// let inputs = Tensor::randn([100, 64], (Kind::Float, Device::Cpu));
/// let labels = Tensor::zeros([100], (Kind::Int64, Device::Cpu));
/// let train = InMemory::new((inputs, labels))?.batch_size(32).shuffle(42);
/// assert_eq!(train.len(), Some(4)); // the last has 4 rows
/// # Ok::<(), trainer::Error>(())
/// ```
#[derive(Debug)]
pub struct InMemory<D> {
    data: D,
    rows: i64,
    batch_size: i64,
    drop_last: bool,
    seed: Option<u64>,
}

impl<D: Rows> InMemory<D> {
    /// A loader of one row a batch, in the order of the data.
    ///
    /// # Errors
    ///
    /// When the parts of the data do not have the same number of rows.
    pub fn new(data: D) -> Result<Self> {
        Ok(InMemory { rows: data.rows()?, data, batch_size: 1, drop_last: false, seed: None })
    }

    /// So many rows a batch; the last may have fewer.
    ///
    /// # Panics
    ///
    /// When it is 0.
    #[must_use]
    #[track_caller]
    pub fn batch_size(mut self, rows: usize) -> Self {
        assert!(rows > 0, "a batch has at least one row");
        self.batch_size = i64::try_from(rows).unwrap_or(i64::MAX);
        self
    }

    /// Another order each epoch, which depends on the seed and the number of the epoch alone.
    #[must_use]
    pub fn shuffle(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Leaves out the last batch of an epoch if it is not full.
    #[must_use]
    pub fn drop_last(mut self, drop: bool) -> Self {
        self.drop_last = drop;
        self
    }

    fn count(&self) -> i64 {
        let whole = self.rows / self.batch_size;
        if self.drop_last || self.rows % self.batch_size == 0 { whole } else { whole + 1 }
    }
}

impl<D: Rows> Loader<D> for InMemory<D> {
    fn batches(&mut self, epoch: u64, start: u64) -> Result<Batches<'_, D>> {
        let order = self.seed.map(|seed| {
            let mut order: Vec<i64> = (0..self.rows).collect();
            order.shuffle(&mut rng_of(seed, epoch));
            Tensor::from_slice(&order)
        });
        let start = i64::try_from(start).unwrap_or(i64::MAX).min(self.count());
        Ok(Box::new((start..self.count()).map(move |index| {
            let first = index * self.batch_size;
            let count = self.batch_size.min(self.rows - first);
            Ok(match &order {
                None => self.data.slice(first, count),
                Some(order) => self.data.select(&order.narrow(0, first, count)),
            })
        })))
    }

    fn len(&self) -> Option<u64> {
        Some(self.count().unsigned_abs())
    }
}

/// A generator for one epoch. The seed and the epoch are two words of its key, so that no two pairs meet.
fn rng_of(seed: u64, epoch: u64) -> ChaCha8Rng {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&seed.to_le_bytes());
    key[8..16].copy_from_slice(&epoch.to_le_bytes());
    ChaCha8Rng::from_seed(key)
}

/// A loader made of a closure: see [`from_fn`].
pub struct FromFn<F, I> {
    batches: F,
    iterator: PhantomData<fn() -> I>,
}

impl<F, I> fmt::Debug for FromFn<F, I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FromFn").finish_non_exhaustive()
    }
}

/// A loader that asks a closure for the batches of each epoch.
///
/// ```
/// use tch::Tensor;
/// use trainer::data::from_fn;
///
/// let loader = from_fn(|epoch| (0..10).map(move |n| Tensor::from(epoch as i64 * 10 + n)));
/// # let _: &dyn trainer::data::Loader<Tensor> = &loader;
/// ```
///
/// The items may be results; the first error ends the run. A stream has no length that is known, and its
/// first batches are drawn and dropped where a pass begins in the middle.
///
/// ```
/// use std::io;
/// use tch::Tensor;
/// use trainer::data::from_fn;
///
/// let lines = [Ok("1.5"), Err(io::Error::other("disk on fire"))];
/// let mut lines = Some(lines);
/// let loader = from_fn(move |_| {
///     lines.take().into_iter().flatten().map(|line| line.map(|text| Tensor::from(text.parse().unwrap_or(0.0_f64))))
/// });
/// # let _: &dyn trainer::data::Loader<Tensor> = &loader;
/// ```
pub fn from_fn<F, I>(batches: F) -> FromFn<F, I>
where
    F: FnMut(u64) -> I,
    I: IntoIterator,
{
    FromFn { batches, iterator: PhantomData }
}

/// What an iterator of batches may yield: a batch, or a result with one.
#[diagnostic::on_unimplemented(
    message = "this loader yields `{Self}`, and the task wants `{B}`",
    note = "a loader yields the task's `Batch`, or a `Result` with one"
)]
pub trait IntoBatch<B> {
    /// As a loader yields it.
    #[allow(clippy::missing_errors_doc)]
    fn into_batch(self) -> Result<B>;
}

impl<B: Batch> IntoBatch<B> for B {
    fn into_batch(self) -> Result<B> {
        Ok(self)
    }
}

impl<B: Batch, E: Into<crate::BoxError>> IntoBatch<B> for Result<B, E> {
    fn into_batch(self) -> Result<B> {
        self.map_err(|error| Error::from(error.into()))
    }
}

impl<B, F, I> Loader<B> for FromFn<F, I>
where
    B: Batch,
    F: FnMut(u64) -> I,
    I: IntoIterator,
    I::Item: IntoBatch<B>,
{
    fn batches(&mut self, epoch: u64, start: u64) -> Result<Batches<'_, B>> {
        let start = usize::try_from(start).unwrap_or(usize::MAX);
        Ok(Box::new((self.batches)(epoch).into_iter().skip(start).map(IntoBatch::into_batch)))
    }
}
