//! [`Loader`]: what yields the batches of an epoch.

use super::batch::Batch;
use super::prefetch::Prefetch;
use crate::error::Result;

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

    /// Is an epoch the same batches each time that it is asked for, from any of them on? A run that is resumed from a checkpoint
    /// relies on it.
    fn is_deterministic(&self) -> bool {
        true
    }

    /// What decides which batches there are, if that can be said: rows, batch size, seed. A checkpoint keeps it, and a run that is resumed
    /// over other data says so.
    fn fingerprint(&self) -> Option<String> {
        None
    }

    /// Is it known that there is no batch?
    fn is_empty(&self) -> bool {
        self.len() == Some(0)
    }

    /// Makes the batches on a background thread, at most `depth` of them ahead of the one that is asked for: the
    /// next is read while a step runs. They are the same, and in the same order.
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
    /// The thread begins with a pass and ends with it, however it ends; if it is making a batch, it finishes that
    /// first. An error arrives in the place of the batch that it was about, and so does a panic, as an error that says so.
    /// Where samples are worth more than one thread, a [`DataLoader`](super::DataLoader) has several.
    ///
    /// The depth is limited to the number of batches in the pass, where that is known. A pass that would be more than 65,536
    /// batches ahead is refused with an error, because room for each is allocated when it begins.
    ///
    /// # Panics
    ///
    /// When `depth` is 0.
    #[must_use]
    #[track_caller]
    fn prefetch(self, depth: usize) -> Prefetch<Self>
    where
        Self: Sized + Send + 'static,
    {
        Prefetch::new(self, depth)
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
