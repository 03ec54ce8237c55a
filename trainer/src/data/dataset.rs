//! [`Dataset`]: rows produced on demand.

use std::sync::Arc;

use super::adapters::{Map, Subset, Weighted, subset, weighted};
use super::batch_sampler::permutation;
use super::fingerprint::UNKNOWN_CONTENT;
use super::rng::RowRng;
use crate::error::{Error, Result};

/// Rows that are produced on demand, for example by reading, decoding and augmenting files. A
/// [`DataLoader`](super::DataLoader) forms batches of them, and can produce the rows on several
/// threads.
///
/// Implement this when your samples are not tensors in memory, and no type in this module, such as
/// [`TokenFile`](super::TokenFile), can read their files.
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
/// The type of the rows determines the type of the batches: see [`Collate`](super::Collate). A
/// `Vec` is a data set whose rows are clones of its elements.
///
/// Threads share the data set, so its methods take `&self`. A [`Tensor`](tch::Tensor) can be sent
/// to another thread but not shared: keep it in a `Mutex`, and take a `shallow_clone()` of it,
/// which copies no data.
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

    /// Produces the row with this index, which is either below [`len`](Dataset::len) or was
    /// returned by [`order`](Dataset::order).
    ///
    /// Draw all random numbers from `rng`: the row is then the same in every run, for any number of
    /// workers and ranks. The random operations of libtorch, such as `Tensor::randn`, draw from a
    /// single generator for the whole process, so their results are not deterministic with several
    /// threads.
    ///
    /// # Errors
    ///
    /// Returns an error if the row cannot be produced. The error ends the run, unless the loader
    /// [skips damaged rows](super::DataLoader::skip_damaged). The message should say which row
    /// cannot be produced, and where that row comes from.
    fn row(&self, index: usize, rng: &mut RowRng) -> Result<Self::Row>;

    /// Returns the indices of the rows of an epoch, in the order in which they are used, or `None`
    /// to use the rows in the order of their indices. `seed` is the seed of
    /// [`shuffle`](super::DataLoader::shuffle), if the loader shuffles.
    ///
    /// Defaults to a random permutation if there is a seed, and to `None` otherwise. Override this
    /// for a different order, for example to read data in pieces, to mix data sets, or to sample
    /// with replacement. The order must have [`len`](Dataset::len) elements, and depend only on the
    /// arguments and the data.
    ///
    /// # Errors
    ///
    /// Returns an error if there is not enough memory for the order.
    fn order(&self, epoch: u64, seed: Option<u64>) -> Result<Option<Vec<usize>>> {
        seed.map(|seed| permutation(self.len(), seed, epoch, |row| row)).transpose()
    }

    /// Returns a description of what determines the rows, apart from their number. Checkpoints
    /// store it, to detect changed data when a run is resumed. Defaults to `unknown content`.
    fn fingerprint(&self) -> String {
        UNKNOWN_CONTENT.to_owned()
    }

    /// Checks for damage that can be detected without producing rows. Called before each pass,
    /// unless the loader [skips damaged rows](super::DataLoader::skip_damaged). Defaults to no
    /// check.
    ///
    /// # Errors
    ///
    /// Returns an error if data is damaged. The error should name everything that is damaged.
    fn check(&self) -> Result<()> {
        Ok(())
    }

    /// Returns a name for messages that says where a row comes from. Defaults to its index.
    fn row_name(&self, index: usize) -> String {
        format!("row {index}")
    }

    /// Returns the rows one after the other: those of the first epoch of a loader that does not
    /// shuffle.
    ///
    /// Use this for statistics of the training rows, such as the mean and the standard deviation of
    /// each column.
    ///
    /// ```
    /// use trainer::prelude::*;
    ///
    /// let [train, valid] = vec![3.0, 5.0, 7.0, 9.0].random_split(42, [0.75, 0.25]);
    /// let mean = train.rows().sum::<Result<f64>>()? / train.len() as f64;
    /// let train = train.map(move |value, _| Ok(value - mean));
    /// let valid = valid.map(move |value, _| Ok(value - mean));
    /// assert!(train.rows().sum::<Result<f64>>()?.abs() < 1e-9);
    /// # drop(valid);
    /// # Ok::<(), trainer::Error>(())
    /// ```
    ///
    /// Each element is an error where [`row`](Dataset::row) returns one, prefixed with the
    /// [name of the row](Dataset::row_name). If [`order`](Dataset::order) fails, its error is the
    /// only element.
    fn rows(&self) -> impl Iterator<Item = Result<Self::Row>>
    where
        Self: Sized,
    {
        let (order, error) = match self.order(0, None) {
            Ok(order) => (order, None),
            Err(error) => (Some(Vec::new()), Some(Err(error))),
        };
        let len = order.as_ref().map_or_else(|| self.len(), Vec::len);
        let rows = (0..len).map(move |position| {
            let index = order.as_ref().map_or(position, |order| order[position]);
            self.row(index, &mut RowRng::new(0, 0, position))
                .map_err(|error| Error::msg(format!("{}: {error}", self.row_name(index))))
        });
        error.into_iter().chain(rows)
    }

    /// Returns a data set that changes each row of this data set with a closure. `change` could,
    /// for example, decode and [augment](super::augment) an image. The closure is called on the
    /// threads of the loader.
    ///
    /// ```
    /// use trainer::data::rand::Rng;
    /// use trainer::prelude::*;
    ///
    /// let numbers: Vec<f32> = vec![1.0, 2.0, 3.0];
    /// let noisy = numbers.map(|number, rng| Ok(number + rng.gen_range(-0.1..0.1)));
    /// let mut train = DataLoader::new(noisy).batch_size(3);
    /// let batch: Tensor = train.batches(0, 0)?.next().expect("there is a batch")?;
    /// assert_eq!(batch.round(), Tensor::from_slice(&[1.0_f32, 2.0, 3.0]));
    /// # Ok::<(), trainer::Error>(())
    /// ```
    ///
    /// Draw all random numbers from the generator passed to the closure, as in
    /// [`row`](Dataset::row). Errors of the closure are prefixed with the name of the row.
    fn map<R, F>(self, change: F) -> Map<Self, F>
    where
        Self: Sized,
        R: Send + 'static,
        F: Fn(Self::Row, &mut RowRng) -> Result<R> + Send + Sync + 'static,
    {
        Map::new(self, change)
    }

    /// Returns a data set of the rows with these indices, in this order. Indices may repeat. A
    /// loader shuffles the subset into the same order that it would use for this data set. So if
    /// this data set reads its data in pieces, the subset does, too.
    ///
    /// Call this before [`weighted`](Dataset::weighted) or [`Mixture`](super::Mixture), not after:
    /// their rows are drawn anew in each epoch, and cannot be chosen by index.
    ///
    /// # Panics
    ///
    /// Panics if an index is not below [`len`](Dataset::len).
    #[track_caller]
    fn subset(self, indices: Vec<usize>) -> Subset<Self>
    where
        Self: Sized,
    {
        Subset::new(Arc::new(self), indices)
    }

    /// Divides the rows at random into parts: each fraction is the share of the rows in one part.
    /// The same seed gives the same parts.
    ///
    /// Use this when the data has no validation set of its own.
    ///
    /// ```
    /// use trainer::prelude::*;
    ///
    /// let [train, valid] = vec![7_i64; 100].random_split(42, [0.8, 0.2]);
    /// assert_eq!((train.len(), valid.len()), (80, 20));
    /// ```
    ///
    /// Rows that belong together, such as recordings of one speaker, should be in one part: divide
    /// them with [`subset`](Dataset::subset) instead.
    ///
    /// # Panics
    ///
    /// Panics if a fraction is negative or not a number, or if the sum of the fractions is more
    /// than 1.
    #[doc(alias("train_test_split", "validation_split"))]
    #[track_caller]
    fn random_split<const N: usize>(self, seed: u64, fractions: [f64; N]) -> [Subset<Self>; N]
    where
        Self: Sized,
    {
        subset::random_split(self, seed, fractions)
    }

    /// Divides the rows at random into `k` parts of about the same size, for cross-validation.
    /// Returns a pair of data sets for each part: all other parts together, to train on, and the
    /// part itself, to validate on.
    ///
    /// Use this when the data is too small for a single validation set, and you train once for each
    /// part.
    ///
    /// ```
    /// use trainer::prelude::*;
    ///
    /// let folds = vec![7_i64; 100].folds(5, 42);
    /// let (train, valid) = &folds[0];
    /// assert_eq!((folds.len(), train.len(), valid.len()), (5, 80, 20));
    /// ```
    ///
    /// # Panics
    ///
    /// Panics unless `k` is at least 2 and at most the number of rows.
    #[track_caller]
    fn folds(self, k: usize, seed: u64) -> Vec<(Subset<Self>, Subset<Self>)>
    where
        Self: Sized,
    {
        subset::folds(self, k, seed)
    }

    /// Returns a data set whose epochs have `rows` rows, each drawn at random with a probability
    /// proportional to its weight, with replacement.
    ///
    /// Use this when some rows should be drawn more often than others. To draw from several data
    /// sets, use a [`Mixture`](super::Mixture).
    ///
    /// ```
    /// use trainer::prelude::*;
    ///
    /// let sampled = vec![0_i64, 1].weighted(&[1.0, 3.0], 1000);
    /// let mut train = DataLoader::new(sampled).batch_size(1000).shuffle(42);
    /// let batch: Tensor = train.batches(0, 0)?.next().expect("there is a batch")?;
    /// assert!((700..800).contains(&batch.sum(Kind::Int64).int64_value(&[])));
    /// # Ok::<(), trainer::Error>(())
    /// ```
    ///
    /// The rows are drawn anew in each epoch, with the seed of
    /// [`shuffle`](super::DataLoader::shuffle), or with 0 if the loader does not shuffle.
    ///
    /// # Panics
    ///
    /// Panics unless there is one weight for each row, all weights are finite and not negative, and
    /// at least one is positive.
    #[track_caller]
    fn weighted(self, weights: &[f64], rows: usize) -> Weighted<Self>
    where
        Self: Sized,
    {
        Weighted::new(self, weights, rows)
    }

    /// Returns a data set whose epochs have as many rows as this data set. The rows are drawn with
    /// replacement, and each class is equally likely. `classes` contains the class of each row.
    ///
    /// Use this when the classes of a data set have different sizes.
    ///
    /// # Panics
    ///
    /// Panics unless there is one class for each row, and at least one row.
    #[track_caller]
    fn balanced<C: Ord>(self, classes: &[C]) -> Weighted<Self>
    where
        Self: Sized,
    {
        let weights = weighted::equal_classes(classes);
        let rows = self.len();
        Weighted::new(self, &weights, rows)
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

    fn check(&self) -> Result<()> {
        (**self).check()
    }

    fn row_name(&self, index: usize) -> String {
        (**self).row_name(index)
    }
}

/// The rows are clones of the elements.
impl<T: Clone + Send + Sync + 'static> Dataset for Vec<T> {
    type Row = T;

    fn len(&self) -> usize {
        self.len()
    }

    fn row(&self, index: usize, _: &mut RowRng) -> Result<T> {
        Ok(self[index].clone())
    }
}
