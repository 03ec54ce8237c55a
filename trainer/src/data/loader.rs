//! [`Loader`]: the source of the batches of an epoch.

use super::batch::Batch;
use super::named::NamedLoader;
use super::prefetch::Prefetch;
use crate::error::Result;

/// An iterator over the batches of one pass.
pub type Batches<'a, B> = Box<dyn Iterator<Item = Result<B>> + 'a>;

/// Yields the batches of an epoch, starting at any of them.
#[diagnostic::on_unimplemented(
    message = "this loader does not yield `{B}`",
    label = "yields other batches than the task's `Batch`",
    note = "the task expects `{B}`: see the `type Batch` of its `impl Task`; `Supervised` expects `(Tensor, Tensor)`"
)]
pub trait Loader<B: Batch> {
    /// Returns the batches of an epoch, starting with index `start`. The same epoch must yield the
    /// same batches, unless [`is_deterministic`](Loader::is_deterministic) is `false`.
    ///
    /// # Errors
    ///
    /// Returns an error if the pass cannot start.
    fn batches(&mut self, epoch: u64, start: u64) -> Result<Batches<'_, B>>;

    /// Returns the number of batches per epoch, if it is known.
    fn len(&self) -> Option<u64> {
        None
    }

    /// Returns whether every call of [`batches`](Loader::batches) for the same epoch yields the
    /// same batches, from any start on. Resuming a run exactly from a checkpoint requires it.
    /// Defaults to `true`.
    fn is_deterministic(&self) -> bool {
        true
    }

    /// Returns a description of everything that determines the batches (rows, batch size, seed), if
    /// it is known. Checkpoints store it, to detect changed data when a run is resumed.
    fn fingerprint(&self) -> Option<String> {
        None
    }

    /// Returns the loaders of [`NamedLoaders`](super::NamedLoaders), each of which an entry gives a
    /// pass of its own. A loader that wraps another one may forward it. Defaults to `None`: one
    /// loader.
    fn named(&mut self) -> Option<Vec<NamedLoader<'_, B>>> {
        None
    }

    /// Returns whether an epoch is known to have no batches.
    fn is_empty(&self) -> bool {
        self.len() == Some(0)
    }

    /// Produces the batches on a background thread, at most `depth` of them ahead, so that the next
    /// batch is prepared while a step runs. The batches and their order stay the same.
    ///
    /// ```
    /// use tch::Tensor;
    /// use trainer::data::from_fn;
    /// use trainer::prelude::*;
    ///
    /// let mut stream = from_fn(|_| (0..10).map(Tensor::from)).prefetch(2);
    /// assert_eq!(stream.batches(0, 0)?.count(), 10);
    /// # Ok::<(), trainer::Error>(())
    /// ```
    ///
    /// The thread starts and ends with each pass, however the pass ends; a batch that it is
    /// producing is finished first. An error or a panic on the thread is returned in place of the
    /// batch that caused it. For several threads, use a [`DataLoader`](super::DataLoader).
    ///
    /// The depth is limited to the number of batches in the pass, if that is known. A pass that
    /// would produce more than 65,536 batches ahead returns an error, because memory for all of
    /// them is reserved when it starts.
    ///
    /// # Panics
    ///
    /// Panics if `depth` is 0.
    #[must_use]
    #[track_caller]
    fn prefetch(self, depth: usize) -> Prefetch<Self>
    where
        Self: Sized + Send + 'static,
    {
        Prefetch::new(self, depth)
    }
}

/// Implements [`Loader`] for a pointer to a loader.
macro_rules! through {
    ($($pointer:ty),+) => {$(
        impl<B: Batch, L: Loader<B> + ?Sized> Loader<B> for $pointer {
            fn batches(&mut self, epoch: u64, start: u64) -> Result<Batches<'_, B>> {
                (**self).batches(epoch, start)
            }

            fn len(&self) -> Option<u64> {
                (**self).len()
            }

            fn named(&mut self) -> Option<Vec<NamedLoader<'_, B>>> {
                (**self).named()
            }

            fn is_deterministic(&self) -> bool {
                (**self).is_deterministic()
            }

            fn fingerprint(&self) -> Option<String> {
                (**self).fingerprint()
            }
        }
    )+};
}

through!(&mut L, Box<L>);
