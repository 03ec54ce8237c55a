//! Finding the largest batch size that fits into memory.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use crate::data::{Batch, Loader};
use crate::distributed::Share;
use crate::error::{Error, Result, panic_text};
use crate::libtorch::cuda;
use crate::training::Trainer;
use crate::training::task::Task;
use crate::training::trial::{Trial, check_loader, trial};

/// The settings of [`Trainer::find_batch_size`].
///
/// ```
/// use trainer::finders::BatchSizeFinder;
/// use trainer::prelude::*;
///
/// # let inputs = Tensor::randn([64, 4], (Kind::Float, Device::Cpu));
/// # let labels = inputs.select(1, 0).gt(0.0).to_kind(Kind::Int64);
/// # let vs = nn::VarStore::new(Device::Cpu);
/// # let net = nn::linear(vs.root() / "fc", 4, 2, Default::default());
/// # let task = Supervised::new(vs, net, |logits, labels| logits.cross_entropy_for_logits(labels));
/// # let mut trainer = Trainer::builder(task).optimizer(Sgd::new(0.1)).build()?;
/// let settings = BatchSizeFinder::new().from(8).max(32).steps(1);
/// let loader = |size| {
///     let data = (inputs.shallow_clone(), labels.shallow_clone());
///     Ok(InMemory::new(data)?.batch_size(size))
/// };
/// assert_eq!(trainer.find_batch_size(loader, &settings)?.size, 32);
/// # Ok::<(), trainer::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchSizeFinder {
    from: u64,
    max: u64,
    steps: u64,
}

impl Default for BatchSizeFinder {
    fn default() -> Self {
        BatchSizeFinder { from: 2, max: 65_536, steps: 3 }
    }
}

impl BatchSizeFinder {
    /// Creates the default settings: from 2 to 65,536 samples, with 3 batches of each size.
    #[must_use]
    pub fn new() -> Self {
        BatchSizeFinder::default()
    }

    /// Sets the first size to try. Defaults to 2.
    #[must_use]
    pub fn from(mut self, samples: u64) -> Self {
        self.from = samples;
        self
    }

    /// Sets the largest size to try. Defaults to 65,536.
    #[must_use]
    pub fn max(mut self, samples: u64) -> Self {
        self.max = samples;
        self
    }

    /// Sets the maximum number of batches to train on with each size. Defaults to 3.
    #[must_use]
    pub fn steps(mut self, batches: u64) -> Self {
        self.steps = batches;
        self
    }
}

/// The result of [`Trainer::find_batch_size`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BatchSizeFound {
    /// The largest batch size with which training succeeded.
    pub size: u64,
    /// The limit that ended the search.
    pub limit: BatchSizeLimit,
}

/// The limit that ended the search for a batch size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BatchSizeLimit {
    /// The memory: a batch with one more sample does not fit.
    Memory,
    /// The data, which has too few samples for a batch of the next size.
    Data,
    /// The setting [`max`](BatchSizeFinder::max).
    Max,
}

/// # Finding a batch size
impl<T: Task> Trainer<T> {
    /// Finds the largest batch size that fits into memory: trains on a few batches of each size,
    /// doubles the size until the memory runs out, and then bisects the interval between the last
    /// two sizes. `loader` returns a loader with batches of the requested number of samples.
    ///
    /// ```
    /// # use trainer::prelude::*;
    /// use trainer::finders::BatchSizeFinder;
    ///
    /// # fn main() -> Result<()> {
    /// # let inputs = Tensor::randn([64, 4], (Kind::Float, Device::Cpu));
    /// # let labels = inputs.select(1, 0).gt(0.0).to_kind(Kind::Int64);
    /// # let vs = nn::VarStore::new(Device::Cpu);
    /// # let net = nn::linear(vs.root() / "fc", 4, 2, Default::default());
    /// # let task = Supervised::new(vs, net, |logits, labels| logits.cross_entropy_for_logits(labels));
    /// # let mut trainer = Trainer::builder(task).optimizer(Sgd::new(0.1)).build()?;
    /// let loader = |samples| {
    ///     let data = (inputs.shallow_clone(), labels.shallow_clone());
    ///     Ok(InMemory::new(data)?.batch_size(samples))
    /// };
    /// let found = trainer.find_batch_size(loader, &BatchSizeFinder::new().max(32))?;
    /// assert_eq!(found.size, 32);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Leave some headroom, because other programs or validation may need memory too. Most methods
    /// of `tch` panic when libtorch fails, so a task that uses them prints a panic message for each
    /// size that does not fit. If an allocation in Rust code fails, the process aborts.
    ///
    /// Everything is restored afterwards, and only some hooks run, as described at
    /// [`find_lr`](Trainer::find_lr). If the data is too small for the next doubled size, the
    /// search returns the previous size.
    ///
    /// In several processes, call this method on all ranks. Like every batch size, the one that is
    /// returned [counts the rows of all ranks](crate::guide::distributed), and all ranks return the
    /// same one: the largest with which the share of each of them fits. Each rank trains on its
    /// shares by itself, because a rank whose memory runs out would leave the others waiting; the
    /// memory for exchanging gradients, as much as they need themselves, is not measured.
    ///
    /// # Errors
    ///
    /// Returns an error
    ///
    /// - if a setting is invalid;
    /// - if a loader is not [deterministic](Loader::is_deterministic), or yields batches that are
    ///   larger than requested;
    /// - if the first size does not fit into memory, or exceeds the data;
    /// - if the trainer has no optimizer, or cannot be restored as described at
    ///   [`find_lr`](Trainer::find_lr);
    /// - if an optimizer is [`Sharded`](crate::optim::Sharded), in several processes;
    /// - for the same reasons as [`fit`](Trainer::fit).
    #[doc(alias("scale_batch_size", "auto_find_batch_size"))]
    pub fn find_batch_size<L: Loader<T::Batch>>(
        &mut self,
        mut loader: impl FnMut(usize) -> Result<L>,
        with: &BatchSizeFinder,
    ) -> Result<BatchSizeFound> {
        let BatchSizeFinder { from, max, steps } = *with;
        if from == 0 || max < from || steps == 0 {
            return Err(Error::usage(format!(
                "`find_batch_size`: `.from({from})`, `.max({max})` and `.steps({steps})`: expected numbers of at least 1, and \
                 the first size no larger than the maximum"
            )));
        }
        trial(&mut self.run, "find_batch_size", super::is_replaced, |trial| {
            search(with, |size| attempt::<T, L>(trial, &mut loader, size, steps))
        })?
    }
}

/// The outcome of training on batches of one size. If the outcomes of the ranks differ, the last of
/// them in this order counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attempt {
    Fits,
    TooFewSamples,
    OutOfMemory,
}

/// Searches for the largest size that fits. First doubles the size until a batch does not fit into
/// memory, the data has too few samples, or the maximum is reached. If a batch did not fit, then
/// bisects the interval between the last two sizes. The inner result is the same on all ranks.
fn search(
    with: &BatchSizeFinder,
    mut attempt: impl FnMut(u64) -> Result<Attempt>,
) -> Result<Result<BatchSizeFound>> {
    let BatchSizeFinder { from, max, .. } = *with;
    let mut fits = 0;
    let mut size = from;
    let too_large = loop {
        match attempt(size)? {
            Attempt::Fits if size >= max => {
                return Ok(Ok(BatchSizeFound { size, limit: BatchSizeLimit::Max }));
            }
            Attempt::Fits => (fits, size) = (size, size.saturating_mul(2).min(max)),
            Attempt::TooFewSamples if fits > 0 => {
                return Ok(Ok(BatchSizeFound { size: fits, limit: BatchSizeLimit::Data }));
            }
            Attempt::TooFewSamples => {
                return Ok(Err(Error::usage(format!(
                    "`find_batch_size`: the loader yielded no batch of size {size}: pass the requested size to `.batch_size(…)`, or \
                     start with a smaller one, `.from(…)`"
                ))));
            }
            Attempt::OutOfMemory if fits > 0 => break size,
            Attempt::OutOfMemory => {
                return Ok(Err(Error::usage(format!(
                    "`find_batch_size`: a batch of size {size} does not fit into memory: start with a smaller one, `.from(…)`, or \
                     use a smaller model"
                ))));
            }
        }
    };
    let mut too_large = too_large;
    while too_large - fits > 1 {
        let middle = fits + (too_large - fits) / 2;
        // The loader had enough samples for a larger size, so only the memory can be too small.
        if attempt(middle)? == Attempt::Fits { fits = middle } else { too_large = middle }
    }
    Ok(Ok(BatchSizeFound { size: fits, limit: BatchSizeLimit::Memory }))
}

/// Trains on at most `steps` batches of one size, each rank by itself on its shares of them.
/// Returns the outcome, which is the same on all ranks.
fn attempt<T: Task, L: Loader<T::Batch>>(
    trial: &mut Trial<'_>,
    loader: &mut impl FnMut(usize) -> Result<L>,
    size: u64,
    steps: u64,
) -> Result<Attempt> {
    let share = trial.run.world().share();
    let own = trial.alone(|trial| attempt_alone::<T, L>(trial, loader, share, size, steps))?;
    let what = "the agreement on a batch size";
    let ([worst], []) = trial.run.world().combine([f64::from(own as u8)], [], what)?;
    let outcomes = [Attempt::Fits, Attempt::TooFewSamples, Attempt::OutOfMemory];
    Ok(outcomes.into_iter().find(|outcome| f64::from(*outcome as u8) == worst).unwrap_or(own))
}

fn attempt_alone<T: Task, L: Loader<T::Batch>>(
    trial: &mut Trial<'_>,
    loader: &mut impl FnMut(usize) -> Result<L>,
    share: Share,
    size: u64,
    steps: u64,
) -> Result<Attempt> {
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let requested = usize::try_from(size).unwrap_or(usize::MAX);
        let mut loader = loader(requested)?;
        check_loader::<T>(&loader, "find_batch_size")?;
        loader.share(share)?;
        let rows = size / u64::from(share.of); // or one more
        let mut trained = 0;
        for batch in loader.batches(trial.run.counters().epoch, 0)? {
            let batch = batch?;
            match batch.samples() {
                Some(samples) if trained == 0 && samples > size => {
                    return Err(Error::usage(format!(
                        "`find_batch_size`: a batch has size {samples} instead of the requested {size}: pass the requested size to \
                         `.batch_size(…)`"
                    )));
                }
                // The last batch of the data.
                Some(samples) if samples < rows => break,
                _ => {}
            }
            let _ = trial.step::<T>(batch, false)?;
            trained += 1;
            if trained == steps {
                break;
            }
        }
        Ok(if trained > 0 { Attempt::Fits } else { Attempt::TooFewSamples })
    }));
    let is_out_of_memory = match &outcome {
        Ok(Ok(_)) => false,
        Ok(Err(error)) => !error.is_cancelled() && is_out_of_memory(&error.to_string()),
        Err(panic) => is_out_of_memory(&panic_text(&**panic)),
    };
    trial.abandon_step()?;
    // Memory that libtorch's allocator still holds from this size would not fit the tensors of the
    // next one. If the device cannot be used after the error, the attempt with the next size
    // reports it.
    let _ = cuda::empty_cache();
    if is_out_of_memory {
        return Ok(Attempt::OutOfMemory);
    }
    outcome.unwrap_or_else(|panic| resume_unwind(panic))
}

/// Whether this is one of libtorch's out-of-memory messages.
fn is_out_of_memory(text: &str) -> bool {
    let signs = [
        "out of memory",
        "can't allocate memory",
        "not enough memory",
        "std::bad_alloc",
        "CUBLAS_STATUS_ALLOC_FAILED",
        "CUDNN_STATUS_ALLOC_FAILED",
        // cuDNN reports this if no algorithm for a convolution fits into memory.
        "CUDNN_STATUS_NOT_SUPPORTED",
    ];
    signs.iter().any(|sign| text.contains(sign))
}

#[cfg(test)]
mod tests {
    use super::{Attempt, BatchSizeFinder, BatchSizeLimit, is_out_of_memory, search};

    #[test]
    fn each_message_of_libtorch_about_memory_is_recognized() {
        for message in [
            "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.64 GiB",
            "CUDA error: out of memory",
            "[enforce fail at alloc_cpu.cpp:124] . DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes",
            "DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes",
            "std::bad_alloc",
            "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
            "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
            "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED. This error may appear if you passed in a non-contiguous input.",
        ] {
            assert!(is_out_of_memory(message), "{message}");
        }
        for message in ["the memory of the past", "CUDA error: device-side assert triggered"] {
            assert!(!is_out_of_memory(message), "{message}");
        }
    }

    #[test]
    fn search_finds_the_largest_size_and_its_limit() {
        for from in [1, 2, 3, 7] {
            for limit in from..200 {
                let with = BatchSizeFinder::new().from(from);
                let found = search(&with, |size| {
                    Ok(if size <= limit { Attempt::Fits } else { Attempt::OutOfMemory })
                });
                let found = found.unwrap().unwrap();
                assert_eq!((found.size, found.limit), (limit, BatchSizeLimit::Memory));
                let found = search(&with.clone().max(limit), |_| Ok(Attempt::Fits)).unwrap().unwrap();
                assert_eq!((found.size, found.limit), (limit, BatchSizeLimit::Max));
            }
        }
        assert!(search(&BatchSizeFinder::new(), |_| Ok(Attempt::OutOfMemory)).unwrap().is_err());
        assert!(search(&BatchSizeFinder::new(), |_| Ok(Attempt::TooFewSamples)).unwrap().is_err());
    }
}
