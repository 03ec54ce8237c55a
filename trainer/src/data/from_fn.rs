//! [`from_fn`] and [`from_fn_per_rank`]: loaders that take their batches from a closure.

use std::fmt;
use std::marker::PhantomData;

use super::batch::Batch;
use super::loader::{Batches, Loader, undivided};
use crate::distributed::Share;
use crate::error::{Error, Result};

/// A loader that takes its batches from a closure: see [`from_fn`] and [`from_fn_per_rank`].
///
/// ```
/// use trainer::data::from_fn;
/// use trainer::prelude::*;
///
/// let batches = from_fn(|epoch| (0..10).map(move |n| Tensor::from(epoch as i64 * 10 + n)));
/// let mut train = batches.with_len(10).deterministic(true); // for fractions, and for an exact resume
/// assert_eq!(Loader::<Tensor>::len(&train), Some(10));
/// # let _: &mut dyn Loader<Tensor> = &mut train;
/// ```
pub struct FromFn<F, I> {
    batches: F,
    share: Share,
    len: Option<u64>,
    is_deterministic: bool,
    iterator: PhantomData<fn() -> I>,
}

impl<F, I> FromFn<F, I> {
    fn new(batches: F) -> Self {
        let share = Share { rank: 0, of: 1 };
        FromFn { batches, share, len: None, is_deterministic: false, iterator: PhantomData }
    }

    /// Sets the number of batches per epoch. Progress bars, schedules over the whole run and
    /// fractions of an epoch need this number.
    ///
    /// The number is not enforced: a pass ends when the iterator does. A pass with another number
    /// of batches leads to a warning. With [`from_fn_per_rank`], it is the number on this rank; if
    /// every rank sets it, the length of an epoch is the largest of these numbers.
    #[must_use]
    pub fn with_len(mut self, batches: u64) -> Self {
        self.len = Some(batches);
        self
    }

    /// Sets whether the closure returns the same batches whenever it is called for the same epoch
    /// (and rank), so that a run can be resumed exactly. Defaults to `false`.
    #[must_use]
    pub fn deterministic(mut self, deterministic: bool) -> Self {
        self.is_deterministic = deterministic;
        self
    }
}

impl<F, I> fmt::Debug for FromFn<F, I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FromFn").field("share", &self.share).field("len", &self.len).finish_non_exhaustive()
    }
}

/// Creates a loader that calls a closure for the batches of each epoch.
///
/// Use this when your batches come from an iterator, a stream or a simulation. If the ranks of
/// [several processes](crate::distributed) have different batches, such as files of their own, use
/// [`from_fn_per_rank`].
///
/// ```
/// use tch::Tensor;
/// use trainer::data::from_fn;
///
/// let loader = from_fn(|epoch| (0..10).map(move |n| Tensor::from(epoch as i64 * 10 + n)));
/// # let _: &dyn trainer::data::Loader<Tensor> = &loader;
/// ```
///
/// The items may be results; the first error ends the run. The number of batches is unknown unless
/// [`with_len`](FromFn::with_len) sets it. A pass that starts in the middle of an epoch also takes
/// the earlier batches of the epoch from the iterator, and drops them.
///
/// ```
/// use std::io;
/// use tch::Tensor;
/// use trainer::data::from_fn;
///
/// let lines = [Ok("1.5"), Err(io::Error::other("disk on fire"))];
/// let mut lines = Some(lines);
/// let loader = from_fn(move |_| {
///     let lines = lines.take().into_iter().flatten();
///     lines.map(|line| line.map(|text| Tensor::from(text.parse().unwrap_or(0.0_f64))))
/// });
/// # let _: &dyn trainer::data::Loader<Tensor> = &loader;
/// ```
pub fn from_fn<F, I>(batches: F) -> FromFn<F, I>
where
    F: FnMut(u64) -> I,
    I: IntoIterator,
{
    FromFn::new(batches)
}

/// A closure of [`from_fn_per_rank`].
pub struct OfRank<F>(F);

/// A closure that returns the batches of an epoch.
pub trait BatchesOf<I> {
    /// Returns the batches of an epoch.
    fn call(&mut self, epoch: u64, share: Share) -> I;

    /// Returns an error if the closure cannot return the batches of this share.
    #[allow(clippy::missing_errors_doc)]
    fn divide(_share: Share) -> Result<()> {
        Ok(())
    }
}

impl<F: FnMut(u64) -> I, I> BatchesOf<I> for F {
    fn call(&mut self, epoch: u64, _: Share) -> I {
        self(epoch)
    }

    fn divide(share: Share) -> Result<()> {
        undivided(share)
    }
}

impl<F: FnMut(u64, Share) -> I, I> BatchesOf<I> for OfRank<F> {
    fn call(&mut self, epoch: u64, share: Share) -> I {
        (self.0)(epoch, share)
    }
}

/// An item of an iterator over batches: a batch, or a `Result` with one.
#[diagnostic::on_unimplemented(
    message = "this loader yields `{Self}`, but the task expects `{B}`",
    note = "a loader yields the task's `Batch`, or a `Result` with one"
)]
pub trait IntoBatch<B> {
    /// Converts the item to the `Result` that a loader yields.
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
    F: BatchesOf<I>,
    I: IntoIterator,
    I::Item: IntoBatch<B>,
{
    fn batches(&mut self, epoch: u64, start: u64) -> Result<Batches<'_, B>> {
        let start = usize::try_from(start).unwrap_or(usize::MAX);
        let batches = self.batches.call(epoch, self.share).into_iter();
        Ok(Box::new(batches.skip(start).map(IntoBatch::into_batch)))
    }

    fn len(&self) -> Option<u64> {
        self.len
    }

    fn is_deterministic(&self) -> bool {
        self.is_deterministic
    }

    fn share(&mut self, share: Share) -> Result<()> {
        self.share = share;
        F::divide(share)
    }
}

/// Creates a loader that calls a closure for the batches of each epoch. The closure receives the
/// rank of this process and the number of ranks, so that each rank can read its own part of the
/// data. A process that trains alone is rank 0 of 1.
///
/// Use this when the closure needs the rank to decide what to read. If all ranks read the same
/// batches, use [`from_fn`] with [`sliced`](Loader::sliced).
///
/// ```
/// use tch::Tensor;
/// use trainer::data::from_fn_per_rank;
///
/// let files = ["a.csv", "b.csv", "c.csv"];
/// let loader = from_fn_per_rank(move |_epoch, share| {
///     let own = files.into_iter().skip(share.rank as usize).step_by(share.of as usize);
///     own.map(|file| std::fs::read(file).map(|bytes| Tensor::from_slice(&bytes)))
/// });
/// # let _: &dyn trainer::data::Loader<Tensor> = &loader;
/// ```
///
/// The batches of all ranks together form one training batch. The ranks may have different numbers
/// of batches, as with [`Loader::per_rank`]. Everything else is as with [`from_fn`].
pub fn from_fn_per_rank<F, I>(batches: F) -> FromFn<OfRank<F>, I>
where
    F: FnMut(u64, Share) -> I,
    I: IntoIterator,
{
    FromFn::new(OfRank(batches))
}
