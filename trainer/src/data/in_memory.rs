//! [`InMemory`]: batches cut out of tensors that are there already.

use tch::Tensor;

use super::cut::BatchSampler;
use super::loader::{Batches, Loader};
use super::rows::Rows;
use crate::error::Result;

/// Tensors in memory, cut into batches along their first dimension.
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
#[derive(Debug)]
pub struct InMemory<D> {
    data: D,
    cut: BatchSampler,
}

impl<D: Rows> InMemory<D> {
    /// A loader of one row a batch, in the order of the data.
    ///
    /// # Errors
    ///
    /// When the parts of the data do not have the same number of rows.
    pub fn new(data: D) -> Result<Self> {
        let rows = usize::try_from(data.rows()?).unwrap_or(0);
        Ok(InMemory { data, cut: BatchSampler::new(rows) })
    }

    /// So many rows a batch; the last may have fewer.
    ///
    /// # Panics
    ///
    /// When it is 0.
    #[must_use]
    #[track_caller]
    pub fn batch_size(mut self, rows: usize) -> Self {
        self.cut.set_batch_size(rows);
        self
    }

    /// Another order each epoch, which depends on the seed and the number of the epoch alone.
    #[must_use]
    pub fn shuffle(mut self, seed: u64) -> Self {
        self.cut.seed = Some(seed);
        self
    }

    /// Leaves out the last batch of an epoch if it is not full.
    #[must_use]
    pub fn drop_last(mut self, drop: bool) -> Self {
        self.cut.drop_last = drop;
        self
    }
}

impl<D: Rows> Loader<D> for InMemory<D> {
    fn batches(&mut self, epoch: u64, start: u64) -> Result<Batches<'_, D>> {
        let order = self.cut.order(epoch, |row| row as i64)?;
        let order = order.map(|order| Tensor::f_from_slice(&order)).transpose()?;
        Ok(Box::new(self.cut.batches_from(start).map(move |index| {
            let rows = self.cut.rows_of(index);
            let (first, count) = (rows.start as i64, rows.len() as i64);
            Ok(match &order {
                None => self.data.slice(first, count),
                Some(order) => self.data.select(&order.narrow(0, first, count)),
            })
        })))
    }

    fn len(&self) -> Option<u64> {
        Some(self.cut.count() as u64)
    }

    fn fingerprint(&self) -> Option<String> {
        Some(self.cut.fingerprint())
    }
}
