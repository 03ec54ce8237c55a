//! [`Loader`]: the source of the batches of an epoch.

use std::fmt;
use std::sync::Arc;

use tch::Device;

use super::batch::Batch;
use super::fingerprint::Fingerprinted;
use super::notes::PassNotes;
use super::prefetch::Prefetch;
use super::rows::Rows;
use super::share::{PerRank, Sliced};
use crate::distributed::Share;
use crate::error::{Error, Result};
use crate::values::every::Every;
use crate::values::facts::SettingList;

/// Returns an error if a loader that does not divide its batches has to.
pub(super) fn undivided(share: Share) -> Result<()> {
    if share.of == 1 {
        return Ok(());
    }
    Err(Error::usage(format!(
        "{} processes train together, but this loader does not divide its batches among them: call `.sliced()` on it to \
         give each rank its rows of every batch, or `.per_rank()` if it yields different batches on each rank",
        share.of
    )))
}

/// An iterator over the batches of one pass.
pub type Batches<'a, B> = Box<dyn Iterator<Item = Result<B>> + 'a>;

/// Yields the batches of an epoch, starting at any index.
///
/// Implement this when no type in this module fits, for example to wrap the reader of another
/// library.
#[doc(alias("DataModule", "LightningDataModule"))]
#[diagnostic::on_unimplemented(
    message = "this loader does not yield `{B}`",
    label = "yields batches of a different type than the task's `Batch`",
    note = "the task expects `{B}`: see `type Batch` in its `impl Task`; `Supervised` expects `(Tensor, Tensor)`"
)]
pub trait Loader<B: Batch> {
    /// Returns the batches of an epoch, starting with index `start`. The same epoch must yield the
    /// same batches, unless [`is_deterministic`](Loader::is_deterministic) is `false`.
    ///
    /// # Errors
    ///
    /// Returns an error if the pass cannot start.
    fn batches(&mut self, epoch: u64, start: u64) -> Result<Batches<'_, B>>;

    /// Returns the number of batches per epoch, if it is known. Defaults to `None`.
    fn len(&self) -> Option<u64> {
        None
    }

    /// Returns whether every call of [`batches`](Loader::batches) for the same epoch yields the
    /// same batches, from any start. Resuming a run exactly from a checkpoint requires this.
    /// Defaults to `true`.
    fn is_deterministic(&self) -> bool {
        true
    }

    /// Returns a description of everything that determines the batches (rows, batch size, seed,
    /// content), if it is known. Checkpoints store it, to detect changed data when a run is
    /// resumed, and the ranks compare it. Defaults to `None`.
    /// [`with_fingerprint`](Loader::with_fingerprint) sets it from outside.
    fn fingerprint(&self) -> Option<String> {
        None
    }

    /// Returns the settings of the loader by name, such as its number of rows, its batch size and
    /// the seed of its order. The [run folder](crate::TrainerBuilder::run_folder) records them, so
    /// that runs can be compared. A resume compares the
    /// [`fingerprint`](Loader::fingerprint) instead. Defaults to none.
    fn settings(&self) -> SettingList {
        SettingList::new()
    }

    /// Returns the individual loaders of [`NamedLoaders`](super::NamedLoaders). Each of them has
    /// its own pass. A loader that wraps another loader may forward the call. Defaults to `None`,
    /// which means that this is a single loader.
    fn named(&mut self) -> Option<Vec<NamedLoader<'_, B>>> {
        None
    }

    /// Returns whether an epoch is known to have no batches.
    fn is_empty(&self) -> bool {
        self.len() == Some(0)
    }

    /// Sets this rank's share of each batch. Called at the start of each fit and of each pass.
    /// Unless [several processes](crate::distributed) train together, the share is that of rank 0
    /// of 1. Afterwards, [`batches`](Loader::batches) yields only [this rank's rows](Share::rows)
    /// of each batch. The number of batches and the fingerprint still describe the data of all
    /// ranks.
    ///
    /// The default implementation returns an error if there are several ranks. A loader that does
    /// not override this method can be wrapped with [`sliced`](Loader::sliced) or
    /// [`per_rank`](Loader::per_rank).
    ///
    /// # Errors
    ///
    /// Returns an error if the loader cannot divide its batches.
    fn share(&mut self, share: Share) -> Result<()> {
        undivided(share)
    }

    /// Returns the loader's notes about the batches of its passes: which batches [are
    /// borrowed](Share::is_borrowed), the position from which the loader can continue with each
    /// batch, and warnings. Called before each pass. Defaults to `None`, for a loader without
    /// notes.
    fn notes(&self) -> Option<PassNotes> {
        None
    }

    /// Prepares the next call of [`batches`](Loader::batches), which will be for this epoch and
    /// start with this batch. `position` is the [position](PassNotes::set_position) that was noted
    /// for the batch. Called when a run is resumed in the middle of an epoch. The default
    /// implementation does nothing.
    ///
    /// # Errors
    ///
    /// Returns an error if the position is invalid for this loader.
    fn seek(&mut self, epoch: u64, batch: u64, position: &str) -> Result<()> {
        let _ = (epoch, batch, position);
        Ok(())
    }

    /// Identifies the content of the data by a text, such as the version or the hash of a data set,
    /// which must change when the data do. A resume with another text is refused.
    ///
    /// Use this for a loader that does not know its content itself: one of a closure, or of rows
    /// in a `Vec`. A resume from such a loader cannot notice other data of the same size, and says
    /// so.
    #[must_use]
    fn with_fingerprint(self, text: impl Into<String>) -> Fingerprinted<Self>
    where
        Self: Sized,
    {
        Fingerprinted::new(self, text.into())
    }

    /// Divides each batch among the ranks if [several processes](crate::distributed) train
    /// together: each rank processes its own rows of the same batch. Needed for loaders that do not
    /// divide their batches themselves, such as [`from_fn`](super::from_fn).
    ///
    /// ```
    /// use tch::{Device, Kind, Tensor};
    /// use trainer::data::from_fn;
    /// use trainer::prelude::*;
    ///
    /// let stream = from_fn(|_| (0..10).map(|_| Tensor::zeros([64, 8], (Kind::Float, Device::Cpu))));
    /// let mut stream = stream.sliced();
    /// assert_eq!(stream.batches(0, 0)?.count(), 10);
    /// # Ok::<(), trainer::Error>(())
    /// ```
    #[must_use]
    fn sliced(self) -> Sliced<Self>
    where
        Self: Sized,
        B: Rows,
    {
        Sliced::new(self)
    }

    /// Declares that the loader yields different batches on each rank. The batches are then used
    /// unchanged, and the batches of all ranks together form one training batch.
    ///
    /// Use this when every rank already reads different rows, for example from its own files. If
    /// every rank reads the same batches, use [`sliced`](Loader::sliced).
    ///
    /// The ranks may have different numbers of batches, but each needs at least one: a pass ends
    /// when the data of all ranks has ended. Until then, a rank whose data has ended processes
    /// copies of its first batch ([`Batch::try_clone`]) with a weight of 0, like a rank without a
    /// row (see [`Share::is_borrowed`]). The number of batches in an epoch is that of the rank with
    /// the most batches; limits apply to this number.
    ///
    /// The wrapped loader does not receive its rank. A loader that needs to know its rank can
    /// implement [`share`](Loader::share) instead, as [`from_fn_per_rank`](super::from_fn_per_rank)
    /// does.
    #[must_use]
    fn per_rank(self) -> PerRank<Self>
    where
        Self: Sized,
    {
        PerRank::new(self)
    }

    /// Produces the batches on a background thread, at most `depth` batches ahead, so that the next
    /// batch is prepared while a step runs. The batches and their order stay the same.
    ///
    /// Use this when a [profile](crate::TrainerBuilder::profile) shows that waiting for batches
    /// takes a noticeable part of a step.
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
    /// The thread starts and ends with each pass, however the pass ends. If it is producing a
    /// batch, it finishes that batch first. An error or a panic on the thread is returned instead
    /// of the batch that caused it. For several threads, use a [`DataLoader`](super::DataLoader).
    ///
    /// The depth is limited to the number of batches in the pass, if that is known. A pass that
    /// would produce more than 65,536 batches ahead returns an error, because memory for all of
    /// them is reserved when the pass starts.
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

    /// Copies the batches to a CUDA device on a background thread. Equivalent to
    /// [`prefetch(2).to_device(device)`](Prefetch::to_device). Also works for a
    /// [`DataLoader`](super::DataLoader) with workers.
    #[must_use]
    fn to_device(self, device: Device) -> Prefetch<Self>
    where
        Self: Sized + Send + 'static,
    {
        Prefetch::new(self, 2).to_device(device)
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

            fn settings(&self) -> SettingList {
                (**self).settings()
            }

            fn share(&mut self, share: Share) -> Result<()> {
                (**self).share(share)
            }

            fn notes(&self) -> Option<PassNotes> {
                (**self).notes()
            }

            fn seek(&mut self, epoch: u64, batch: u64, position: &str) -> Result<()> {
                (**self).seek(epoch, batch, position)
            }
        }
    )+};
}

through!(&mut L, Box<L>);

/// A loader of [`NamedLoaders`](super::NamedLoaders), as [`Loader::named`] returns it.
pub struct NamedLoader<'l, B: Batch> {
    /// The name of the loader; `None` for a single loader without a name.
    pub(crate) name: Option<Arc<str>>,
    pub(crate) every: Option<Every>,
    pub(crate) loader: &'l mut (dyn Loader<B> + 'l),
}

impl<B: Batch> NamedLoader<'_, B> {
    /// The name of the loader; empty for a single loader without a name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.name.as_deref().unwrap_or_default()
    }
}

impl<B: Batch> fmt::Debug for NamedLoader<'_, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NamedLoader")
            .field("name", &self.name)
            .field("every", &self.every)
            .finish_non_exhaustive()
    }
}
