//! Random divisions of the rows of a data set.

use std::sync::Arc;

use rand::seq::SliceRandom;

use super::subset::Subset;
use crate::data::dataset::Dataset;
use crate::data::rng::{ORDER, keyed};

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
