//! [`InMemory`]: a loader for tensors in memory.

use std::cell::OnceCell;

use tch::Tensor;

use super::batch_sampler::BatchSampler;
use super::fingerprint::{UNKNOWN_CONTENT, add_tensors, with_hash};
use super::loader::{Batches, Loader};
use super::notes::PassNotes;
use super::rows::Rows;
use crate::distributed::Share;
use crate::error::Result;
use crate::values::facts::SettingList;

/// Splits tensors in memory into batches, along their first dimension.
///
/// Use this when your data consists of tensors that fit into memory. For anything else, use a
/// [`DataLoader`](super::DataLoader).
///
/// ```
/// use tch::{Device, Kind, Tensor};
/// use trainer::prelude::*;
///
/// let inputs = Tensor::randn([100, 64], (Kind::Float, Device::Cpu));
/// let labels = Tensor::zeros([100], (Kind::Int64, Device::Cpu));
/// let train = InMemory::new((inputs, labels))?.batch_size(32).shuffle(42);
/// assert_eq!(train.len(), Some(4)); // the last has 4 rows
/// # Ok::<(), trainer::Error>(())
/// ```
#[doc(alias = "TensorDataset")]
#[derive(Debug)]
pub struct InMemory<D> {
    data: D,
    /// The hash of the data, once it has been computed; `None` if it cannot be computed.
    content: OnceCell<Option<blake3::Hasher>>,
    sampler: BatchSampler,
}

impl<D: Rows> InMemory<D> {
    /// Creates a loader with batch size 1 that keeps the order of the data.
    ///
    /// # Errors
    ///
    /// Returns an error if
    ///
    /// - `data` contains no tensors;
    /// - the tensors do not all have the same number of rows;
    /// - a tensor has no dimensions.
    pub fn new(data: D) -> Result<Self> {
        let rows = usize::try_from(data.rows()?).unwrap_or(0);
        Ok(InMemory { data, content: OnceCell::new(), sampler: BatchSampler::new(rows) })
    }

    /// Sets the number of rows per batch. The last batch of an epoch may have fewer. Defaults to 1.
    ///
    /// # Panics
    ///
    /// Panics if `rows` is 0.
    #[must_use]
    #[track_caller]
    pub fn batch_size(mut self, rows: usize) -> Self {
        self.sampler.set_batch_size(rows);
        self
    }

    /// Shuffles the rows in each epoch. The order depends only on the seed and the epoch.
    #[must_use]
    pub fn shuffle(mut self, seed: u64) -> Self {
        self.sampler.seed = Some(seed);
        self
    }

    /// Drops the last batch of an epoch if it is incomplete. Off by default.
    #[must_use]
    pub fn drop_last(mut self, drop: bool) -> Self {
        self.sampler.drop_last = drop;
        self
    }
}

impl<D: Rows> Loader<D> for InMemory<D> {
    fn batches(&mut self, epoch: u64, start: u64) -> Result<Batches<'_, D>> {
        let order = self.sampler.order(epoch, |row| row as i64)?;
        let order = order.map(|order| Tensor::f_from_slice(&order)).transpose()?;
        Ok(Box::new(self.sampler.batches_from(start).map(move |index| {
            let rows = self.sampler.rows_of(index);
            self.sampler.note(index);
            let first = rows.start as i64;
            let count = rows.len() as i64;
            Ok(match &order {
                None => self.data.slice(first, count),
                Some(order) => self.data.select(&order.narrow(0, first, count)),
            })
        })))
    }

    fn share(&mut self, share: Share) -> Result<()> {
        self.sampler.set_share(share);
        Ok(())
    }

    fn notes(&self) -> Option<PassNotes> {
        self.sampler.notes.clone()
    }

    fn len(&self) -> Option<u64> {
        Some(self.sampler.count() as u64)
    }

    /// Describes the rows with a hash of all tensors, which is computed once.
    fn fingerprint(&self) -> Option<String> {
        let rows = self.sampler.fingerprint();
        let content = self.content.get_or_init(|| {
            let mut hash = blake3::Hasher::new();
            add_tensors(&mut hash, &self.data).ok().map(|()| hash)
        });
        Some(match content {
            Some(hash) => with_hash(&rows, hash),
            None => format!("{rows}, {UNKNOWN_CONTENT}"),
        })
    }

    fn settings(&self) -> SettingList {
        self.sampler.settings()
    }
}
