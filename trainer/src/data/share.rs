//! Loaders for several processes: [`Sliced`] and [`PerRank`].

use super::batch::Batch;
use super::loader::{Batches, Loader};
use super::notes::PassNotes;
use super::rows::Rows;
use crate::distributed::Share;
use crate::error::Result;
use crate::values::facts::SettingList;

/// A loader whose batches are divided among the ranks: see [`Loader::sliced`].
///
/// ```
/// use trainer::data::from_fn;
/// use trainer::prelude::*;
///
/// // The closure yields the same batches on every rank; each rank processes its rows of them.
/// let train = from_fn(|epoch| (0..10).map(move |n| Tensor::from_slice(&[epoch as i64, n]))).sliced();
/// # let _: &dyn Loader<Tensor> = &train;
/// ```
#[derive(Debug)]
pub struct Sliced<L> {
    loader: L,
    share: Option<Share>,
    /// The notes that are used if the wrapped loader has no notes of its own.
    notes: PassNotes,
}

impl<L> Sliced<L> {
    pub(super) fn new(loader: L) -> Self {
        Sliced { loader, share: None, notes: PassNotes::default() }
    }
}

impl<B: Rows, L: Loader<B>> Loader<B> for Sliced<L> {
    fn batches(&mut self, epoch: u64, start: u64) -> Result<Batches<'_, B>> {
        let notes = self.loader.notes().unwrap_or_else(|| self.notes.clone());
        let batches = self.loader.batches(epoch, start)?;
        let Some(share) = self.share else { return Ok(batches) };
        Ok(Box::new((start..).zip(batches).map(move |(index, batch)| {
            let batch = batch?;
            let rows = usize::try_from(batch.rows()?).unwrap_or(0);
            if share.is_borrowed(rows) {
                notes.set_borrowed(index);
            }
            let own = share.rows(rows);
            Ok(batch.slice(own.start as i64, own.len() as i64))
        })))
    }

    fn len(&self) -> Option<u64> {
        self.loader.len()
    }

    fn is_deterministic(&self) -> bool {
        self.loader.is_deterministic()
    }

    fn fingerprint(&self) -> Option<String> {
        self.loader.fingerprint()
    }

    fn settings(&self) -> SettingList {
        self.loader.settings()
    }

    fn share(&mut self, share: Share) -> Result<()> {
        self.share = Some(share);
        Ok(())
    }

    fn notes(&self) -> Option<PassNotes> {
        self.loader.notes().or_else(|| Some(self.notes.clone()))
    }

    fn seek(&mut self, epoch: u64, batch: u64, position: &str) -> Result<()> {
        self.loader.seek(epoch, batch, position)
    }
}

/// A loader that yields different batches on each rank: see [`Loader::per_rank`].
///
/// ```
/// use trainer::data::from_fn;
/// use trainer::prelude::*;
///
/// // Each rank reads a different file, as a batch of that rank alone.
/// let file = format!("part-{}.txt", std::env::var("RANK").unwrap_or("0".to_owned()));
/// let train = from_fn(move |_| std::fs::read(&file).map(|bytes| Tensor::from_slice(&bytes)).into_iter());
/// let train = train.per_rank();
/// # let _: &dyn Loader<Tensor> = &train;
/// ```
#[derive(Debug)]
pub struct PerRank<L>(L);

impl<L> PerRank<L> {
    pub(super) fn new(loader: L) -> Self {
        PerRank(loader)
    }
}

impl<B: Batch, L: Loader<B>> Loader<B> for PerRank<L> {
    fn batches(&mut self, epoch: u64, start: u64) -> Result<Batches<'_, B>> {
        self.0.batches(epoch, start)
    }

    fn len(&self) -> Option<u64> {
        self.0.len()
    }

    fn is_deterministic(&self) -> bool {
        self.0.is_deterministic()
    }

    /// Returns `None`, because each rank has different data.
    fn fingerprint(&self) -> Option<String> {
        None
    }

    fn settings(&self) -> SettingList {
        self.0.settings()
    }

    fn share(&mut self, _: Share) -> Result<()> {
        Ok(())
    }

    fn notes(&self) -> Option<PassNotes> {
        self.0.notes()
    }

    fn seek(&mut self, epoch: u64, batch: u64, position: &str) -> Result<()> {
        self.0.seek(epoch, batch, position)
    }
}
