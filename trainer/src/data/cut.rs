//! [`BatchSampler`]: how the rows of a data set become the batches of an epoch.

use std::ops::Range;

use rand::seq::SliceRandom;

use super::rng::keyed;
use crate::error::{Error, Result};

/// The word of the key under which the order of an epoch is drawn; those of the batches come after it.
pub(super) const ORDER: u64 = 0;

/// A number for each of these rows.
///
/// # Errors
///
/// Returns an error if there is not enough memory for them.
pub(super) fn numbers<N>(rows: Range<usize>, number: impl Fn(usize) -> N) -> Result<Vec<N>> {
    let mut numbers = Vec::new();
    numbers.try_reserve_exact(rows.len()).map_err(|error| {
        Error::usage(format!("cannot hold the indices of {} rows in memory: {error}", rows.len()))
    })?;
    numbers.extend(rows.map(number));
    Ok(numbers)
}

/// So many rows, cut into batches.
#[derive(Clone, Debug)]
pub(super) struct BatchSampler {
    rows: usize,
    batch_size: usize,
    pub(super) drop_last: bool,
    /// Of the order; none leaves that of the data.
    pub(super) seed: Option<u64>,
}

impl BatchSampler {
    /// One row a batch, in the order of the data.
    pub(super) fn new(rows: usize) -> Self {
        BatchSampler { rows, batch_size: 1, drop_last: false, seed: None }
    }

    #[track_caller]
    pub(super) fn set_batch_size(&mut self, rows: usize) {
        assert!(rows > 0, "a batch has at least one row");
        self.batch_size = rows;
    }

    /// What decides which batches there are.
    pub(super) fn fingerprint(&self) -> String {
        let order = self.seed.map_or_else(|| "in order".to_owned(), |seed| format!("shuffled by {seed}"));
        let last = if self.drop_last { ", without a last one that is not full" } else { "" };
        format!("{} rows, {} a batch, {order}{last}", self.rows, self.batch_size)
    }

    /// How many batches an epoch has.
    pub(super) fn count(&self) -> usize {
        if self.drop_last { self.rows / self.batch_size } else { self.rows.div_ceil(self.batch_size) }
    }

    /// The indices of the batches from this one on.
    pub(super) fn batches_from(&self, start: u64) -> Range<usize> {
        let count = self.count();
        usize::try_from(start).unwrap_or(count).min(count)..count
    }

    /// The rows of an epoch in its order, each as this number; none where it is that of the data.
    ///
    /// # Errors
    ///
    /// Returns an error if there is not enough memory for it.
    pub(super) fn order<N>(&self, epoch: u64, number: impl Fn(usize) -> N) -> Result<Option<Vec<N>>> {
        let Some(seed) = self.seed else { return Ok(None) };
        let mut rng = keyed(seed, epoch, ORDER);
        let mut order = numbers(0..self.rows, number)?;
        order.shuffle(&mut rng);
        Ok(Some(order))
    }

    /// Where the rows of a batch lie in that order.
    pub(super) fn rows_of(&self, batch: usize) -> Range<usize> {
        let first = batch * self.batch_size;
        first..first + self.batch_size.min(self.rows - first)
    }
}
