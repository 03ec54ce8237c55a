//! [`BatchSampler`]: the assignment of rows to the batches of an epoch.

use std::ops::Range;

use rand::seq::SliceRandom;

use super::loader::Borrowed;
use super::rng::{ORDER, keyed};
use crate::distributed::Share;
use crate::error::{Error, Result};

/// Returns `number(row)` for each row.
///
/// # Errors
///
/// Returns an error if there is not enough memory for the result.
pub(super) fn row_numbers<N>(rows: Range<usize>, number: impl Fn(usize) -> N) -> Result<Vec<N>> {
    let mut numbers = Vec::new();
    numbers.try_reserve_exact(rows.len()).map_err(|error| {
        Error::usage(format!("cannot hold the indices of {} rows in memory: {error}", rows.len()))
    })?;
    numbers.extend(rows.map(number));
    Ok(numbers)
}

/// Divides a number of rows into batches.
#[derive(Clone, Debug)]
pub(super) struct BatchSampler {
    rows: usize,
    batch_size: usize,
    pub(super) drop_last: bool,
    /// This rank's share of each batch; `None` if there is only one process.
    pub(super) share: Option<Share>,
    /// The seed for shuffling; `None` keeps the order of the data.
    pub(super) seed: Option<u64>,
}

impl BatchSampler {
    /// Creates a sampler with batch size 1 that keeps the order of the data.
    pub(super) fn new(rows: usize) -> Self {
        BatchSampler { rows, batch_size: 1, drop_last: false, share: None, seed: None }
    }

    #[track_caller]
    pub(super) fn set_batch_size(&mut self, rows: usize) {
        assert!(rows > 0, "`.batch_size(0)`: expected at least 1");
        self.batch_size = rows;
    }

    /// Describes everything that determines the batches.
    pub(super) fn fingerprint(&self) -> String {
        let order =
            self.seed.map_or_else(|| "not shuffled".to_owned(), |seed| format!("shuffled with seed {seed}"));
        let last = if self.drop_last { ", without an incomplete last batch" } else { "" };
        format!("{} rows, batch size {}, {order}{last}", self.rows, self.batch_size)
    }

    /// Returns the number of batches per epoch.
    pub(super) fn count(&self) -> usize {
        if self.drop_last { self.rows / self.batch_size } else { self.rows.div_ceil(self.batch_size) }
    }

    /// Returns the indices of the batches from index `start` on.
    pub(super) fn batches_from(&self, start: u64) -> Range<usize> {
        let count = self.count();
        usize::try_from(start).unwrap_or(count).min(count)..count
    }

    /// Returns `number(row)` of each row in the shuffled order of an epoch; `None` without
    /// shuffling.
    ///
    /// # Errors
    ///
    /// Returns an error if there is not enough memory for the order.
    pub(super) fn order<N>(&self, epoch: u64, number: impl Fn(usize) -> N) -> Result<Option<Vec<N>>> {
        let Some(seed) = self.seed else { return Ok(None) };
        let mut rng = keyed(seed, epoch, ORDER);
        let mut order = row_numbers(0..self.rows, number)?;
        order.shuffle(&mut rng);
        Ok(Some(order))
    }

    /// Returns the positions, in the order of the epoch, of this rank's rows of a batch.
    pub(super) fn rows_of(&self, batch: usize) -> Range<usize> {
        let first = batch * self.batch_size;
        let rows = self.batch_size.min(self.rows - first);
        let own = self.share.map_or(0..rows, |share| share.rows(rows));
        first + own.start..first + own.end
    }

    /// Returns a function that reports which batches have no row for this rank; `None` if there is
    /// only one process.
    pub(super) fn borrowed(&self) -> Option<Borrowed> {
        let BatchSampler { rows, batch_size, .. } = *self;
        let share = self.share?;
        Some(Box::new(move |batch| {
            let first = usize::try_from(batch).map_or(rows, |batch| batch.saturating_mul(batch_size));
            share.is_borrowed(batch_size.min(rows.saturating_sub(first)))
        }))
    }
}
