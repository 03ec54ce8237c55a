//! [`Dataset`]: samples produced on demand.

use std::sync::Arc;

use super::batch::Batch;
use super::rng::BatchRng;
use crate::error::Result;

/// Samples that are produced on demand, for example by reading, decoding and augmenting files. A
/// [`DataLoader`](super::DataLoader) groups them into batches, and can produce these on several
/// threads.
///
/// One method produces a whole batch, so no collate function is needed, and a dataset can read all
/// samples of a batch at once where that is faster.
///
/// ```
/// use trainer::data::BatchRng;
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
///     type Batch = (Tensor, Tensor);
///
///     fn len(&self) -> usize {
///         self.values.len()
///     }
///     fn batch(&self, indices: &[usize], rng: &mut BatchRng) -> Result<(Tensor, Tensor)> {
///         let mut noisy = |&index: &usize| {
///             let values = self.values[index].iter().map(|value| value + rng.gen_range(-0.1..0.1));
///             Tensor::from_slice(&values.collect::<Vec<f32>>())
///         };
///         let inputs: Vec<Tensor> = indices.iter().map(&mut noisy).collect();
///         let labels: Vec<i64> = indices.iter().map(|&index| self.labels[index]).collect();
///         Ok((Tensor::stack(&inputs, 0), Tensor::from_slice(&labels)))
///     }
/// }
///
/// let signals = Signals { values: vec![vec![0.5; 8]; 100], labels: vec![1; 100] };
/// let mut train = DataLoader::new(signals).batch_size(32).shuffle(42).workers(2);
/// let (inputs, _) = train.batches(0, 0)?.next().expect("there are four batches")?;
/// assert_eq!(inputs.size(), [32, 8]);
/// # Ok::<(), trainer::Error>(())
/// ```
///
/// Threads share the dataset, so its methods take `&self`. A [`Tensor`](tch::Tensor) can be sent to
/// another thread but not shared: keep it in a `Mutex`, and take a `shallow_clone()` of it, which
/// copies no data.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not implement `Dataset`",
    note = "implement `len`, the number of samples, and `batch`, which produces a batch of them; \
            for tensors in memory use `InMemory::new(…)`, for an iterator `from_fn(…)`"
)]
pub trait Dataset: Send + Sync + 'static {
    /// The type of a batch.
    type Batch: Batch;

    /// Returns the number of samples. Called once, when the loader is created.
    fn len(&self) -> usize;

    /// Returns whether there are no samples.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Produces the batch of the samples with these indices, each below [`len`](Dataset::len), in
    /// this order.
    ///
    /// Draw all random numbers from `rng`: the batch is then the same in every run. The random
    /// operations of libtorch, such as `Tensor::randn`, draw from one generator of the whole
    /// process, so with several threads their results are not deterministic.
    ///
    /// # Errors
    ///
    /// Returns an error if the batch cannot be produced; this ends the run.
    fn batch(&self, indices: &[usize], rng: &mut BatchRng) -> Result<Self::Batch>;
}

/// A dataset that several loaders share.
impl<D: Dataset + ?Sized> Dataset for Arc<D> {
    type Batch = D::Batch;

    fn len(&self) -> usize {
        (**self).len()
    }

    fn batch(&self, indices: &[usize], rng: &mut BatchRng) -> Result<D::Batch> {
        (**self).batch(indices, rng)
    }
}
