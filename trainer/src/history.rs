//! What an entry measured, over time.

use std::ops::Index;

use serde::{Deserialize, Serialize};

use crate::counters::Counters;
use crate::error::suggestion;
use crate::metrics::Metrics;

/// What an entry measured, as columns: a row for each epoch, and one for each validation within an epoch.
///
/// The rows say at which counters they were measured; [`samples_seen`](Counters::samples_seen) is the axis on which runs with
/// other batch sizes, accumulation or numbers of processes compare.
///
/// ```
/// # use trainer::Summary;
/// # fn plot(summary: &Summary) {
/// for (step, loss) in summary.history.points("valid/loss") {
///     println!("{} {loss}", step.samples_seen);
/// }
/// let losses: &[f64] = &summary.history["train/loss"];
/// # }
/// ```
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct History {
    steps: Vec<Counters>,
    columns: Vec<(String, Vec<f64>)>,
}

impl History {
    /// How many rows there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.steps.len()
    }

    /// Was nothing measured?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// The counters of each row.
    #[must_use]
    pub fn steps(&self) -> &[Counters] {
        &self.steps
    }

    /// Every column, `phase/name`, with a value for each row: NaN where that row has none.
    pub fn columns(&self) -> impl Iterator<Item = (&str, &[f64])> {
        self.columns.iter().map(|(name, values)| (name.as_str(), values.as_slice()))
    }

    /// The column of this name: NaN where a row has no value.
    #[must_use]
    pub fn column(&self, name: &str) -> Option<&[f64]> {
        self.columns().find(|(own, _)| *own == name).map(|(_, values)| values)
    }

    /// The values of a column, each with its counters, without the rows that have none.
    pub fn points(&self, name: &str) -> impl Iterator<Item = (Counters, f64)> {
        let values = self.column(name).unwrap_or_default();
        self.steps.iter().copied().zip(values.iter().copied()).filter(|(_, value)| !is_absent(*value))
    }

    /// The values of a row that it has.
    pub(crate) fn row(&self, row: usize) -> impl Iterator<Item = (&str, f64)> {
        let values = self.columns().map(move |(name, values)| (name, values[row]));
        values.filter(|(_, value)| !is_absent(*value))
    }

    /// Adds a row; what was measured at the same counters as the one before it joins that.
    pub(crate) fn record(&mut self, step: Counters, metrics: &Metrics) {
        if self.steps.last() != Some(&step) {
            self.steps.push(step);
            self.columns.iter_mut().for_each(|(_, values)| values.push(ABSENT));
        }
        for (name, value) in metrics.iter() {
            let known = self.columns.iter().position(|(own, _)| own == name);
            let index = known.unwrap_or_else(|| {
                self.columns.push((name.to_owned(), vec![ABSENT; self.steps.len()]));
                self.columns.len() - 1
            });
            if let Some(last) = self.columns[index].1.last_mut() {
                *last = value;
            }
        }
    }

    /// The last value of each column.
    pub(crate) fn last(&self) -> Metrics {
        let mut last = Metrics::default();
        for (name, values) in self.columns() {
            if let Some(value) = values.iter().rev().find(|value| !is_absent(**value)) {
                last.set(name.to_owned(), *value);
            }
        }
        last
    }
}

/// In the place of a value that a row does not have: a NaN of its own, so that one that was measured is told from it.
const ABSENT: f64 = f64::from_bits(0x7ff8_0000_0000_0a85);

fn is_absent(value: f64) -> bool {
    value.to_bits() == ABSENT.to_bits()
}

/// NaN equals NaN here: two histories of the same run are equal.
impl PartialEq for History {
    fn eq(&self, other: &Self) -> bool {
        let bits = |(name, values): &(String, Vec<f64>)| {
            (name.clone(), values.iter().map(|value| value.to_bits()).collect::<Vec<_>>())
        };
        self.steps == other.steps && self.columns.iter().map(bits).eq(other.columns.iter().map(bits))
    }
}

/// For a column that is known to be there: `history["valid/loss"]`.
///
/// # Panics
///
/// When it is not; the message names the most similar one.
impl Index<&str> for History {
    type Output = [f64];

    fn index(&self, name: &str) -> &[f64] {
        self.column(name).unwrap_or_else(|| {
            let similar = suggestion(name, self.columns().map(|(own, _)| own));
            panic!("nothing was measured under `{name}`{similar}")
        })
    }
}
