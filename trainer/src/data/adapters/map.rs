//! [`Map`]: rows that a closure changes.

use std::fmt;

use crate::data::dataset::Dataset;
use crate::data::rng::RowRng;
use crate::error::{Error, Result};

/// A data set whose rows are changed by a closure: see [`Dataset::map`].
///
/// ```
/// use trainer::prelude::*;
///
/// let doubled = vec![1.0_f32, 2.0].map(|number, _| Ok(2.0 * number));
/// let mut train = DataLoader::new(doubled).batch_size(2);
/// let batch: Tensor = train.batches(0, 0)?.next().expect("there is a batch")?;
/// assert_eq!(batch, Tensor::from_slice(&[2.0_f32, 4.0]));
/// # Ok::<(), trainer::Error>(())
/// ```
#[derive(Clone)]
pub struct Map<D, F> {
    dataset: D,
    change: F,
}

impl<D, F> Map<D, F> {
    pub(in crate::data) fn new(dataset: D, change: F) -> Self {
        Map { dataset, change }
    }
}

impl<D: fmt::Debug, F> fmt::Debug for Map<D, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Map").field("dataset", &self.dataset).finish_non_exhaustive()
    }
}

impl<D, R, F> Dataset for Map<D, F>
where
    D: Dataset,
    R: Send + 'static,
    F: Fn(D::Row, &mut RowRng) -> Result<R> + Send + Sync + 'static,
{
    type Row = R;

    fn len(&self) -> usize {
        self.dataset.len()
    }

    fn row(&self, index: usize, rng: &mut RowRng) -> Result<R> {
        let row = self.dataset.row(index, rng)?;
        (self.change)(row, rng)
            .map_err(|error| Error::msg(format!("{}: {error}", self.dataset.row_name(index))))
    }

    fn order(&self, epoch: u64, seed: Option<u64>) -> Result<Option<Vec<usize>>> {
        self.dataset.order(epoch, seed)
    }

    fn fingerprint(&self) -> String {
        self.dataset.fingerprint()
    }

    fn check(&self) -> Result<()> {
        self.dataset.check()
    }

    fn row_name(&self, index: usize) -> String {
        self.dataset.row_name(index)
    }
}
