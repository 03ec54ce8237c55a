//! [`Subset`]: some of the rows of a data set, and random divisions of all rows.

use std::sync::Arc;

use rand::seq::SliceRandom;

use crate::data::batch_sampler::row_numbers;
use crate::data::dataset::Dataset;
use crate::data::fingerprint::or_unknown;
use crate::data::rng::{ORDER, RowRng, keyed};
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

/// The epoch passed to `keyed` for a random division. No training epoch has this number.
const DIVISION: u64 = u64::MAX;

/// Returns the indices of the rows in random order.
fn shuffled(rows: usize, seed: u64) -> Vec<usize> {
    let mut indices: Vec<usize> = (0..rows).collect();
    indices.shuffle(&mut keyed(seed, DIVISION, ORDER));
    indices
}

/// Returns the subset that consists of the rows with these indices, in the order of the data set.
fn part<D: Dataset>(dataset: &Arc<D>, mut indices: Vec<usize>) -> Subset<D> {
    indices.sort_unstable();
    Subset::new(Arc::clone(dataset), indices)
}

#[track_caller]
pub(in crate::data) fn random_split<D: Dataset, const N: usize>(
    dataset: D,
    seed: u64,
    fractions: [f64; N],
) -> [Subset<D>; N] {
    let sum: f64 = fractions.iter().sum();
    let is_fraction = |fraction: &f64| (0.0..=1.0).contains(fraction);
    assert!(
        fractions.iter().all(is_fraction) && sum <= 1.0 + 1e-9,
        "`.random_split({seed}, {fractions:?})`: expected fractions from 0 to 1 with a sum of at most 1"
    );
    let dataset = Arc::new(dataset);
    let rows = dataset.len();
    let indices = shuffled(rows, seed);
    let end = |sum: f64| ((sum * rows as f64).round() as usize).min(rows);
    let mut before = 0.0;
    fractions.map(|fraction| {
        let first = end(before);
        before += fraction;
        part(&dataset, indices[first..end(before)].to_vec())
    })
}

#[track_caller]
pub(in crate::data) fn folds<D: Dataset>(dataset: D, k: usize, seed: u64) -> Vec<(Subset<D>, Subset<D>)> {
    let rows = dataset.len();
    assert!(
        k >= 2 && k <= rows,
        "`.folds({k}, {seed})` of {rows} rows: expected at least 2 folds, and at most one for each row"
    );
    let dataset = Arc::new(dataset);
    let indices = shuffled(rows, seed);
    let fold = |nth: usize| {
        let held_out = nth * rows / k..(nth + 1) * rows / k;
        let others = [&indices[..held_out.start], &indices[held_out.end..]].concat();
        (part(&dataset, others), part(&dataset, indices[held_out].to_vec()))
    };
    (0..k).map(fold).collect()
}
