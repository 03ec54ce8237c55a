//! [`Dataset`]: samples that are made when they are asked for.

use std::sync::Arc;

use super::batch::Batch;
use super::rng::BatchRng;
use crate::error::Result;

/// Samples that are made when they are asked for: read, decoded, augmented. A [`DataLoader`](super::DataLoader) cuts
/// them into batches, and makes these on as many threads as it is told.
///
/// One method makes a whole batch, so that nothing has to say how samples are put together, and data that is read
/// faster in one piece is.
///
/// ```
/// use trainer::data::BatchRng;
/// use trainer::data::rand::Rng;
/// use trainer::prelude::*;
///
/// /// Signals, each with noise that is new in every epoch.
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
///             let values: Vec<f32> = self.values[index].iter().map(|value| value + rng.gen_range(-0.1..0.1)).collect();
///             Tensor::from_slice(&values)
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
/// Threads share it, and it does not change. A [`Tensor`](tch::Tensor) can be sent to another thread but not shared: keep
/// one in a `Mutex`, and take a `shallow_clone()` out of it, which copies no data.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no data set",
    note = "implement `Dataset` for it: how many samples there are, and how a batch of them is made; \
            tensors that lie in memory go into `InMemory::new(…)`, and an iterator into `from_fn(…)`"
)]
pub trait Dataset: Send + Sync + 'static {
    /// What a batch is.
    type Batch: Batch;

    /// How many samples there are. It is read once, when the loader is made.
    fn len(&self) -> usize;

    /// Is there no sample?
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The batch of these samples, each below [`len`](Dataset::len), in this order.
    ///
    /// What is random in it is drawn from `rng`, and it is then the same in every run. The random operations of libtorch,
    /// `Tensor::randn` say, draw from one generator of the whole program: on several threads nobody knows which batch
    /// gets which of its numbers.
    ///
    /// # Errors
    ///
    /// What keeps the batch from being made; it ends the run.
    fn batch(&self, indices: &[usize], rng: &mut BatchRng) -> Result<Self::Batch>;
}

/// One data set in several loaders.
impl<D: Dataset + ?Sized> Dataset for Arc<D> {
    type Batch = D::Batch;

    fn len(&self) -> usize {
        (**self).len()
    }

    fn batch(&self, indices: &[usize], rng: &mut BatchRng) -> Result<D::Batch> {
        (**self).batch(indices, rng)
    }
}
