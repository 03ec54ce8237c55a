//! [`Subset`]: some of the rows of a data set.

use std::sync::Arc;

use crate::data::batch_sampler::row_numbers;
use crate::data::dataset::Dataset;
use crate::data::fingerprint::or_unknown;
use crate::data::rng::RowRng;
use crate::error::Result;

/// Some of the rows of a data set. Several subsets can share one data set. See [`Dataset::subset`],
/// [`random_split`](Dataset::random_split) and [`folds`](Dataset::folds).
///
/// ```
/// use trainer::prelude::*;
///
/// let numbers = vec![10_i64, 20, 30, 40];
/// let [train, valid] = numbers.random_split(42, [0.75, 0.25]);
/// assert_eq!((train.len(), valid.len()), (3, 1));
/// assert!(!train.indices().contains(&valid.indices()[0]));
/// ```
#[derive(Debug)]
pub struct Subset<D> {
    dataset: Arc<D>,
    indices: Vec<usize>,
}

impl<D> Clone for Subset<D> {
    fn clone(&self) -> Self {
        Subset { dataset: Arc::clone(&self.dataset), indices: self.indices.clone() }
    }
}

impl<D: Dataset> Subset<D> {
    #[track_caller]
    pub(in crate::data) fn new(dataset: Arc<D>, indices: Vec<usize>) -> Self {
        let len = dataset.len();
        if let Some(index) = indices.iter().find(|index| **index >= len) {
            panic!("`.subset(…)` has the index {index}: expected indices below {len}, the number of rows");
        }
        Subset { dataset, indices }
    }
}

impl<D> Subset<D> {
    /// Returns the indices of the rows in the original data set.
    #[must_use]
    pub fn indices(&self) -> &[usize] {
        &self.indices
    }
}

impl<D: Dataset> Dataset for Subset<D> {
    type Row = D::Row;

    fn len(&self) -> usize {
        self.indices.len()
    }

    fn row(&self, index: usize, rng: &mut RowRng) -> Result<D::Row> {
        self.dataset.row(self.indices[index], rng)
    }

    fn order(&self, epoch: u64, seed: Option<u64>) -> Result<Option<Vec<usize>>> {
        let Some(whole) = self.dataset.order(epoch, seed)? else { return Ok(None) };
        // The position of each row in the order of the data set. Rows that the order does not use
        // come last.
        let mut ranks = row_numbers(0..self.dataset.len(), |_| usize::MAX)?;
        for (rank, index) in whole.into_iter().enumerate().rev() {
            if let Some(of_row) = ranks.get_mut(index) {
                *of_row = rank;
            }
        }
        let mut order = row_numbers(0..self.len(), |row| row)?;
        order.sort_by_key(|row| (ranks[self.indices[*row]], *row));
        Ok(Some(order))
    }

    fn fingerprint(&self) -> String {
        let mut hash = blake3::Hasher::new();
        for index in &self.indices {
            hash.update(&(*index as u64).to_le_bytes());
        }
        let whole = or_unknown(self.dataset.fingerprint());
        format!("rows {} of {whole}", &hash.finalize().to_hex()[..16])
    }

    fn check(&self) -> Result<()> {
        self.dataset.check()
    }

    fn row_name(&self, index: usize) -> String {
        self.dataset.row_name(self.indices[index])
    }
}
