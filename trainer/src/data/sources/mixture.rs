//! [`Mixture`]: rows of several data sets, by weight.

use std::fmt;
use std::sync::Arc;

use rand::seq::SliceRandom;

use crate::data::batch_sampler::{reserve, row_numbers};
use crate::data::dataset::Dataset;
use crate::data::fingerprint::or_unknown;
use crate::data::rng::{RowRng, keyed};
use crate::error::{Error, Result};

/// The number of consecutive rows that are drawn with the same weights.
const STRETCH: usize = 1024;

/// The index passed to `keyed` for the order of the sources within an epoch.
const SOURCES: u64 = u64::MAX;

/// A data set that mixes the rows of several data sets by weight. All rows have the same type.
///
/// Use this when you train on several data sets at once. To draw rows of one data set by weight,
/// use [`weighted`](super::super::Dataset::weighted).
///
/// ```
/// use trainer::data::Mixture;
/// use trainer::prelude::*;
///
/// let web = vec![0_i64; 10_000];
/// let books = vec![1_i64; 500];
/// let mixture = Mixture::new()
///     .add(web, 3.0)
///     // From 9 % of the rows up to a third, over the first 100,000 rows of training.
///     .add_with(books, |rows| 0.3 + 1.2 * (rows as f64 / 100_000.0).min(1.0))
///     .rows_per_epoch(5_000);
/// let train = DataLoader::new(mixture).batch_size(8).shuffle(42);
/// assert_eq!(train.len(), Some(625));
/// ```
///
/// Each data set contributes a fraction of every 1,024 rows: its weight divided by the sum of all
/// weights, to within two rows. Rounding errors are compensated in the next 1,024 rows. Each data
/// set is used in its own order, which continues across epochs. When all rows of a data set have
/// been used, the data set is shuffled again and starts over.
///
/// Resuming is exact, because the order of an epoch is computed from the number of the epoch.
#[doc(alias("interleave_datasets", "ConcatDataset"))]
pub struct Mixture<R> {
    sources: Vec<Source<R>>,
    rows: Option<usize>,
}

struct Source<R> {
    dataset: Arc<dyn Dataset<Row = R>>,
    rows: usize,
    weight: Weight,
}

enum Weight {
    Constant(f64),
    Schedule(Box<dyn Fn(u64) -> f64 + Send + Sync>),
}

impl Weight {
    fn at(&self, rows: u64) -> f64 {
        match self {
            Weight::Constant(weight) => *weight,
            Weight::Schedule(weight) => weight(rows),
        }
    }
}

impl<R: Send + 'static> Default for Mixture<R> {
    fn default() -> Self {
        Mixture::new()
    }
}

impl<R> fmt::Debug for Mixture<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows: Vec<usize> = self.sources.iter().map(|source| source.rows).collect();
        f.debug_struct("Mixture").field("rows", &rows).finish_non_exhaustive()
    }
}

impl<R: Send + 'static> Mixture<R> {
    /// Creates a mixture without data sets.
    #[must_use]
    pub fn new() -> Self {
        Mixture { sources: Vec::new(), rows: None }
    }

    /// Adds a data set with a weight.
    ///
    /// # Panics
    ///
    /// Panics if the data set has no rows, or if the weight is negative or not finite.
    #[must_use]
    #[track_caller]
    pub fn add(self, dataset: impl Dataset<Row = R>, weight: f64) -> Self {
        assert!(
            weight.is_finite() && weight >= 0.0,
            "`.add(…, {weight})`: expected a finite weight of at least 0"
        );
        self.with(dataset, Weight::Constant(weight))
    }

    /// Adds a data set whose weight changes during training.
    ///
    /// `weight` receives the number of rows that were used since the start of training, summed over
    /// all data sets. The closure is called every 1,024 rows, and must depend only on its argument.
    ///
    /// # Panics
    ///
    /// Panics if the data set has no rows.
    #[must_use]
    #[track_caller]
    pub fn add_with(
        self,
        dataset: impl Dataset<Row = R>,
        weight: impl Fn(u64) -> f64 + Send + Sync + 'static,
    ) -> Self {
        self.with(dataset, Weight::Schedule(Box::new(weight)))
    }

    #[track_caller]
    fn with(mut self, dataset: impl Dataset<Row = R>, weight: Weight) -> Self {
        let rows = dataset.len();
        assert!(rows > 0, "data set {} of the mixture has no rows", self.sources.len());
        self.sources.push(Source { dataset: Arc::new(dataset), rows, weight });
        self
    }

    /// Sets the number of rows in an epoch. Defaults to the number of rows of all data sets
    /// together.
    #[must_use]
    pub fn rows_per_epoch(mut self, rows: usize) -> Self {
        self.rows = Some(rows);
        self
    }

    fn all_rows(&self) -> usize {
        self.sources.iter().map(|source| source.rows).sum()
    }

    /// Returns the number of the data set that contains a row, and the index of the row in that
    /// data set. The indices of the data sets are interleaved, because the order of a data set may
    /// contain indices above its number of rows.
    fn find(&self, index: usize) -> (usize, usize) {
        (index % self.sources.len(), index / self.sources.len())
    }

    /// Returns the fraction of rows to draw from each data set. `rows` is the number of rows that
    /// were used since the start of training.
    fn fractions(&self, rows: u64) -> Result<Vec<f64>> {
        let weights: Vec<f64> = self.sources.iter().map(|source| source.weight.at(rows)).collect();
        let sum: f64 = weights.iter().sum();
        if weights.iter().any(|weight| weight.is_nan() || *weight < 0.0) || !sum.is_finite() || sum <= 0.0 {
            return Err(Error::usage(format!(
                "the weights of the mixture after {rows} rows are {weights:?}: expected finite weights of at least 0, and \
                 one above 0"
            )));
        }
        Ok(weights.into_iter().map(|weight| weight / sum).collect())
    }
}

/// How many rows of each data set have been used so far.
struct Used {
    counts: Vec<u64>,
    /// The number of rows by which each data set is behind its share: above −2 and below 2.
    owed: Vec<f64>,
}

impl Used {
    /// Uses `rows` more rows, and returns how many of them each data set contributes.
    fn advance(&mut self, rows: usize, fractions: &[f64]) -> Vec<usize> {
        for (owed, fraction) in self.owed.iter_mut().zip(fractions) {
            *owed += fraction * rows as f64;
        }
        let mut counts: Vec<usize> = self.owed.iter().map(|owed| owed.floor().max(0.0) as usize).collect();
        let missing = |nth: usize, counts: &[usize]| self.owed[nth] - counts[nth] as f64;
        let mut sum: usize = counts.iter().sum();
        while sum < rows {
            // Rounding errors must not choose a data set whose weight is 0.
            let usable = (0..counts.len()).filter(|nth| fractions[*nth] > 0.0);
            let nth =
                usable.max_by(|a, b| missing(*a, &counts).total_cmp(&missing(*b, &counts)).then(b.cmp(a)));
            counts[nth.unwrap_or(0)] += 1;
            sum += 1;
        }
        while sum > rows {
            let usable = (0..counts.len()).filter(|nth| counts[*nth] > 0);
            let nth = usable.min_by(|a, b| missing(*a, &counts).total_cmp(&missing(*b, &counts)));
            counts[nth.unwrap_or(0)] -= 1;
            sum -= 1;
        }
        for (nth, count) in counts.iter().enumerate() {
            self.owed[nth] -= *count as f64;
            self.counts[nth] += *count as u64;
        }
        counts
    }
}

/// Returns, for each of the next rows, the number of the data set that contributes it. The data
/// sets take turns as evenly as their `counts` of rows allow.
fn turns(counts: &[usize]) -> Vec<usize> {
    let turn = |nth: usize| (0..counts[nth]).map(move |row| ((row as f64 + 0.5) / counts[nth] as f64, nth));
    let mut turns: Vec<(f64, usize)> = (0..counts.len()).flat_map(turn).collect();
    turns.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    turns.into_iter().map(|(_, nth)| nth).collect()
}

/// Yields row indices in the order of a data set, continuing where the previous epoch stopped.
struct Cursor<'a, R> {
    source: &'a Source<R>,
    seed: Option<u64>,
    next: u64,
    /// The number of times that all rows have been used, and the current order.
    order: Option<(u64, Vec<usize>)>,
}

impl<R: Send + 'static> Cursor<'_, R> {
    fn next(&mut self) -> Result<usize> {
        let time = self.next / self.source.rows as u64;
        let at = (self.next % self.source.rows as u64) as usize;
        self.next += 1;
        let order = match self.order.take() {
            Some((current, order)) if current == time => order,
            _ => match self.source.dataset.order(time, self.seed)? {
                Some(order) => order,
                None => row_numbers(0..self.source.rows, |row| row)?,
            },
        };
        let index = order.get(at).copied();
        self.order = Some((time, order));
        index.ok_or_else(|| {
            Error::usage("`Dataset::order` of a data set in a mixture returned too few indices: expected one for each row")
        })
    }
}

impl<R: Send + 'static> Dataset for Mixture<R> {
    type Row = R;

    fn len(&self) -> usize {
        self.rows.unwrap_or_else(|| self.all_rows())
    }

    fn row(&self, index: usize, rng: &mut RowRng) -> Result<R> {
        let (nth, row) = self.find(index);
        self.sources[nth].dataset.row(row, rng)
    }

    fn order(&self, epoch: u64, seed: Option<u64>) -> Result<Option<Vec<usize>>> {
        if self.sources.is_empty() {
            return Ok(None);
        }
        let rows = self.len();
        let mut used = Used { counts: vec![0; self.sources.len()], owed: vec![0.0; self.sources.len()] };
        // Each epoch consists of stretches, of which the last may be shorter.
        let stretches = |epoch: u64| {
            let before = epoch * rows as u64;
            (0..rows).step_by(STRETCH).map(move |first| (before + first as u64, STRETCH.min(rows - first)))
        };
        for (first, length) in (0..epoch).flat_map(stretches) {
            used.advance(length, &self.fractions(first)?);
        }
        let starts = used.counts.clone();
        let cursors = self.sources.iter().zip(starts).zip(0..);
        let mut cursors: Vec<Cursor<'_, R>> = cursors
            .map(|((source, next), nth)| {
                // Equal data sets are shuffled differently.
                let seed = seed.map(|seed| seed.wrapping_add(nth));
                Cursor { source, seed, next, order: None }
            })
            .collect();
        let mut rng = keyed(seed.unwrap_or(0), epoch, SOURCES);
        let mut order = Vec::new();
        reserve(&mut order, rows)?;
        for (first, length) in stretches(epoch) {
            let mut turns = turns(&used.advance(length, &self.fractions(first)?));
            if seed.is_some() {
                turns.shuffle(&mut rng);
            }
            for nth in turns {
                order.push(cursors[nth].next()? * self.sources.len() + nth);
            }
        }
        Ok(Some(order))
    }

    fn fingerprint(&self) -> String {
        let rows = self.len() as u64;
        let sources = self.sources.iter().map(|source| {
            let weight = match &source.weight {
                Weight::Constant(weight) => format!("weight {weight}"),
                Weight::Schedule(weight) => {
                    let at = [0, rows / 2, rows, 10 * rows, 100 * rows].map(|rows| weight(rows).to_string());
                    format!("weights {}", at.join(", "))
                }
            };
            format!("{} rows, {}, {weight}", source.rows, or_unknown(source.dataset.fingerprint()))
        });
        format!("a mixture of ({})", sources.collect::<Vec<_>>().join("), ("))
    }

    fn check(&self) -> Result<()> {
        self.sources.iter().try_for_each(|source| source.dataset.check())
    }

    fn row_name(&self, index: usize) -> String {
        let (nth, row) = self.find(index);
        let name = self.sources[nth].dataset.row_name(row);
        format!("{name} (data set {nth} of the mixture)")
    }
}
