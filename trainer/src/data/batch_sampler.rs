//! [`BatchSampler`]: the assignment of rows to the batches of an epoch.

use std::ops::Range;

use rand::seq::SliceRandom;

use super::notes::PassNotes;
use super::rng::{ORDER, keyed};
use crate::distributed::Share;
use crate::error::{Error, Result};
use crate::values::facts::SettingList;

/// Returns `number(row)` for each row.
///
/// # Errors
///
/// Returns an error if there is not enough memory for the result.
pub(super) fn row_numbers<N>(rows: Range<usize>, number: impl Fn(usize) -> N) -> Result<Vec<N>> {
    let mut numbers = Vec::new();
    reserve(&mut numbers, rows.len())?;
    numbers.extend(rows.map(number));
    Ok(numbers)
}

/// Reserves memory for one value per row.
///
/// # Errors
///
/// Returns an error if there is not enough memory.
pub(super) fn reserve<T>(values: &mut Vec<T>, rows: usize) -> Result<()> {
    values
        .try_reserve_exact(rows)
        .map_err(|error| Error::usage(format!("cannot hold {rows} rows or their indices in memory: {error}")))
}

/// Returns `number(row)` for each row, in the shuffled order of an epoch.
///
/// # Errors
///
/// Returns an error if there is not enough memory for the order.
pub(super) fn permutation<N>(
    rows: usize,
    seed: u64,
    epoch: u64,
    number: impl Fn(usize) -> N,
) -> Result<Vec<N>> {
    let mut order = row_numbers(0..rows, number)?;
    order.shuffle(&mut keyed(seed, epoch, ORDER));
    Ok(order)
}

/// Divides the rows of an epoch into batches.
#[derive(Clone, Debug)]
pub(super) struct BatchSampler {
    rows: usize,
    batch_size: usize,
    pub(super) drop_last: bool,
    /// The share of each batch that this rank processes. Until it is set, it is `None`, and this
    /// rank processes all rows.
    pub(super) share: Option<Share>,
    /// The notes about batches without a row for this rank; `None` if there is only one rank.
    pub(super) notes: Option<PassNotes>,
    /// The seed for shuffling; `None` keeps the order of the data.
    pub(super) seed: Option<u64>,
}

impl BatchSampler {
    /// Creates a sampler with batch size 1 that keeps the order of the data.
    pub(super) fn new(rows: usize) -> Self {
        BatchSampler { rows, batch_size: 1, drop_last: false, share: None, notes: None, seed: None }
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

    /// Returns the settings of the batches. The seed is missing if the rows are not shuffled.
    pub(super) fn settings(&self) -> SettingList {
        SettingList::new()
            .with("rows", self.rows)
            .with("batch_size", self.batch_size)
            .with_optional("shuffle", self.seed)
            .with("drop_last", self.drop_last)
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

    /// Returns `number(row)` for each row, in the shuffled order of an epoch. `None` without
    /// shuffling.
    ///
    /// # Errors
    ///
    /// Returns an error if there is not enough memory for the order.
    pub(super) fn order<N>(&self, epoch: u64, number: impl Fn(usize) -> N) -> Result<Option<Vec<N>>> {
        self.seed.map(|seed| permutation(self.rows, seed, epoch, number)).transpose()
    }

    /// Returns this rank's rows of a batch, as a range of positions in the epoch.
    pub(super) fn rows_of(&self, batch: usize) -> Range<usize> {
        let all = self.all_rows_of(batch);
        let own = self.share.map_or(0..all.len(), |share| share.rows(all.len()));
        all.start + own.start..all.start + own.end
    }

    /// Returns all rows of a batch, for all ranks together, as a range of positions in the epoch.
    pub(super) fn all_rows_of(&self, batch: usize) -> Range<usize> {
        let first = batch * self.batch_size;
        first..first + self.batch_size.min(self.rows - first)
    }

    /// Whether a batch has no row for this rank.
    pub(super) fn is_borrowed(&self, batch: usize) -> bool {
        self.share.is_some_and(|share| share.is_borrowed(self.all_rows_of(batch).len()))
    }

    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    pub(super) fn batch_size(&self) -> usize {
        self.batch_size
    }

    pub(super) fn set_share(&mut self, share: Share) {
        self.share = Some(share);
        self.notes = (share.of > 1).then(PassNotes::default);
    }

    /// If a batch has no row for this rank, records that in the notes.
    pub(super) fn note(&self, batch: usize) {
        if let Some(notes) = &self.notes
            && self.is_borrowed(batch)
        {
            notes.set_borrowed(batch as u64);
        }
    }
}
