//! [`Cut`]: how the rows of a data set become the batches of an epoch.

use std::ops::Range;

use rand::seq::SliceRandom;

use super::rng::keyed;

/// The word of the key under which the order of an epoch is drawn; those of the batches come after it.
pub(super) const ORDER: u64 = 0;

/// So many rows, cut into batches.
#[derive(Clone, Debug)]
pub(super) struct Cut {
    rows: usize,
    batch_size: usize,
    pub(super) drop_last: bool,
    /// Of the order; none leaves that of the data.
    pub(super) seed: Option<u64>,
}

impl Cut {
    /// One row a batch, in the order of the data.
    pub(super) fn new(rows: usize) -> Self {
        Cut { rows, batch_size: 1, drop_last: false, seed: None }
    }

    #[track_caller]
    pub(super) fn set_batch_size(&mut self, rows: usize) {
        assert!(rows > 0, "a batch has at least one row");
        self.batch_size = rows;
    }

    /// What decides which batches there are.
    pub(super) fn told(&self) -> String {
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
    pub(super) fn order<N>(&self, epoch: u64, number: impl Fn(usize) -> N) -> Option<Vec<N>> {
        let mut rng = keyed(self.seed?, epoch, ORDER);
        let mut order: Vec<N> = (0..self.rows).map(number).collect();
        order.shuffle(&mut rng);
        Some(order)
    }

    /// Where the rows of a batch lie in that order.
    pub(super) fn rows_of(&self, batch: usize) -> Range<usize> {
        let first = batch * self.batch_size;
        first..first + self.batch_size.min(self.rows - first)
    }
}
