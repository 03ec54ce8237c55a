//! [`Weighted`]: rows drawn at random by weight.

use std::collections::BTreeMap;

use rand::Rng;

use crate::data::batch_sampler::reserve;
use crate::data::dataset::Dataset;
use crate::data::fingerprint::or_unknown;
use crate::data::rng::{ORDER, RowRng, keyed};
use crate::error::Result;

/// A data set whose rows are drawn at random, with replacement: see [`Dataset::weighted`] and
/// [`Dataset::balanced`].
///
/// ```
/// use trainer::prelude::*;
///
/// // 90 rows of class 0 and 10 of class 1: each makes up about half of an epoch.
/// let classes: Vec<i64> = (0..100).map(|row| i64::from(row >= 90)).collect();
/// let mut train = DataLoader::new(classes.clone().balanced(&classes)).batch_size(100).shuffle(42);
/// let batch: Tensor = train.batches(0, 0)?.next().expect("there is a batch")?;
/// assert!((30..70).contains(&batch.sum(Kind::Int64).int64_value(&[])));
/// # Ok::<(), trainer::Error>(())
/// ```
#[doc(alias = "WeightedRandomSampler")]
#[derive(Clone, Debug)]
pub struct Weighted<D> {
    dataset: D,
    /// For each row, the sum of the weights up to and including it.
    sums: Vec<f64>,
    rows: usize,
}

/// Returns a weight for each row such that all classes are equally likely to be drawn.
#[track_caller]
pub(in crate::data) fn equal_classes<C: Ord>(classes: &[C]) -> Vec<f64> {
    assert!(
        !classes.is_empty(),
        "`.balanced(…)` has no classes: expected one for each row, and at least one row"
    );
    let mut counts = BTreeMap::new();
    for class in classes {
        *counts.entry(class).or_insert(0) += 1;
    }
    classes.iter().map(|class| 1.0 / f64::from(counts[class])).collect()
}

impl<D: Dataset> Weighted<D> {
    #[track_caller]
    pub(in crate::data) fn new(dataset: D, weights: &[f64], rows: usize) -> Self {
        let len = dataset.len();
        assert!(
            weights.len() == len,
            "{} weights or classes for {len} rows: expected one for each row",
            weights.len()
        );
        if let Some(row) = weights.iter().position(|weight| !weight.is_finite() || *weight < 0.0) {
            panic!("the weight of row {row} is {}: expected a finite number of at least 0", weights[row]);
        }
        let sums: Vec<f64> = weights
            .iter()
            .scan(0.0, |sum, weight| {
                *sum += weight;
                Some(*sum)
            })
            .collect();
        let sum = sums.last().copied().unwrap_or(0.0);
        assert!(sum > 0.0 && sum.is_finite(), "the weights sum to {sum}: expected a positive number");
        Weighted { dataset, sums, rows }
    }
}

impl<D: Dataset> Dataset for Weighted<D> {
    type Row = D::Row;

    fn len(&self) -> usize {
        self.rows
    }

    fn row(&self, index: usize, rng: &mut RowRng) -> Result<D::Row> {
        self.dataset.row(index, rng)
    }

    fn order(&self, epoch: u64, seed: Option<u64>) -> Result<Option<Vec<usize>>> {
        let mut rng = keyed(seed.unwrap_or(0), epoch, ORDER);
        let sum = self.sums[self.sums.len() - 1];
        let mut order = Vec::new();
        reserve(&mut order, self.rows)?;
        for _ in 0..self.rows {
            // The first row whose sum is above the number drawn, so its weight is not 0.
            let drawn = rng.gen_range(0.0..sum);
            order.push(self.sums.partition_point(|up_to| *up_to <= drawn));
        }
        Ok(Some(order))
    }

    fn fingerprint(&self) -> String {
        let mut hash = blake3::Hasher::new();
        for sum in &self.sums {
            hash.update(&sum.to_le_bytes());
        }
        let inner = or_unknown(self.dataset.fingerprint());
        format!("drawn by weights {} from {inner}", &hash.finalize().to_hex()[..16])
    }

    fn check(&self) -> Result<()> {
        self.dataset.check()
    }

    fn row_name(&self, index: usize) -> String {
        self.dataset.row_name(index)
    }
}
