//! [`Dataset`]: rows produced on demand.

use std::sync::Arc;

use super::batch_sampler::permutation;
use super::rng::RowRng;
use crate::error::Result;

/// Rows that are produced on demand, for example by reading, decoding and augmenting files. A
/// [`DataLoader`](super::DataLoader) makes batches of them, and can produce the rows on several
/// threads.
///
/// ```
/// use trainer::data::RowRng;
/// use trainer::data::rand::Rng;
/// use trainer::prelude::*;
///
/// /// Signals with random noise, different in every epoch.
/// struct Signals {
///     values: Vec<Vec<f32>>,
///     labels: Vec<i64>,
/// }
///
/// impl Dataset for Signals {
///     type Row = (Vec<f32>, i64);
///
///     fn len(&self) -> usize {
///         self.values.len()
///     }
///     fn row(&self, index: usize, rng: &mut RowRng) -> Result<Self::Row> {
///         let noisy = self.values[index].iter().map(|value| value + rng.gen_range(-0.1..0.1));
///         Ok((noisy.collect(), self.labels[index]))
///     }
/// }
///
/// let signals = Signals { values: vec![vec![0.5; 8]; 100], labels: vec![1; 100] };
/// let mut train = DataLoader::new(signals).batch_size(32).shuffle(42).workers(2);
/// let (inputs, labels): (Tensor, Tensor) = train.batches(0, 0)?.next().expect("there are four batches")?;
/// assert_eq!((inputs.size(), labels.size()), (vec![32, 8], vec![32]));
/// # Ok::<(), trainer::Error>(())
/// ```
///
/// The type of the rows decides the batch: see [`Collate`](super::Collate). A `Vec` is a data set of
/// clones of its elements.
///
/// Threads share the data set, so its methods take `&self`. A [`Tensor`](tch::Tensor) can be sent to
/// another thread but not shared: keep it in a `Mutex`, and take a `shallow_clone()` of it, which
/// copies no data.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not implement `Dataset`",
    note = "implement `len`, the number of rows, and `row`, which produces one of them; for tensors in memory use \
            `InMemory::new(…)`, for an iterator `from_fn(…)`"
)]
pub trait Dataset: Send + Sync + 'static {
    /// The type of a row.
    type Row: Send + 'static;

    /// Returns the number of rows in an epoch. Called once, when the loader is created.
    fn len(&self) -> usize;

    /// Returns whether there are no rows.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Produces the row with this index, which is below [`len`](Dataset::len) or comes from
    /// [`order`](Dataset::order).
    ///
    /// Draw all random numbers from `rng`: the row is then the same in every run, for any number of
    /// workers and of ranks. The random operations of libtorch, such as `Tensor::randn`, draw from one
    /// generator of the whole process, so with several threads their results are not deterministic.
    ///
    /// # Errors
    ///
    /// Returns an error if the row cannot be produced. It ends the run, unless the loader [skips
    /// damaged rows](super::DataLoader::skip_damaged). The message should say which row it is, and
    /// where it comes from.
    fn row(&self, index: usize, rng: &mut RowRng) -> Result<Self::Row>;

    /// Returns the indices of the rows of an epoch, in the order in which they are used, or `None` for
    /// their own order. `seed` is that of [`shuffle`](super::DataLoader::shuffle), if the loader
    /// shuffles.
    ///
    /// Defaults to a random permutation if there is a seed. Data that is read in pieces, a mixture and
    /// a sample with replacement have an order of their own. It must have [`len`](Dataset::len)
    /// elements, and depend on nothing but its arguments and the data.
    ///
    /// # Errors
    ///
    /// Returns an error if there is not enough memory for the order.
    fn order(&self, epoch: u64, seed: Option<u64>) -> Result<Option<Vec<usize>>> {
        seed.map(|seed| permutation(self.len(), seed, epoch, |row| row)).transpose()
    }

    /// Describes what determines the rows, besides their number, for checkpoints, which detect
    /// changed data with it. Defaults to nothing.
    fn fingerprint(&self) -> String {
        String::new()
    }
}

/// A data set that several loaders share.
impl<D: Dataset + ?Sized> Dataset for Arc<D> {
    type Row = D::Row;

    fn len(&self) -> usize {
        (**self).len()
    }

    fn row(&self, index: usize, rng: &mut RowRng) -> Result<D::Row> {
        (**self).row(index, rng)
    }

    fn order(&self, epoch: u64, seed: Option<u64>) -> Result<Option<Vec<usize>>> {
        (**self).order(epoch, seed)
    }

    fn fingerprint(&self) -> String {
        (**self).fingerprint()
    }
}

/// The elements in memory.
impl<T: Clone + Send + Sync + 'static> Dataset for Vec<T> {
    type Row = T;

    fn len(&self) -> usize {
        self.len()
    }

    fn row(&self, index: usize, _: &mut RowRng) -> Result<T> {
        Ok(self[index].clone())
    }
}
