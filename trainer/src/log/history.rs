//! [`Metrics`] and [`History`]: the metrics of an entry point over time. [`Summary`]: the value
//! that an entry point returns.

use std::fmt;
use std::ops::Index;

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
pub use trainer_formats::run::Goal;

use crate::error::did_you_mean;
use crate::moments::counters::Counters;
use crate::values::float::readable;

/// Returns the message for a hook that compares values of a metric the wrong way round.
pub(crate) fn wrong_goal(metric: &str, goal: Goal) -> String {
    let is = if goal == Goal::Maximize { "larger" } else { "smaller" };
    format!("{is} values of `{metric}` are better: expected `Goal::{goal:?}`")
}

/// Values by name, in the order of their insertion.
pub(super) type ByName<V> = IndexMap<String, V, foldhash::fast::RandomState>;

/// Reduced metrics by name, in the form `phase/name`, such as `train/loss` and `valid/accuracy`.
///
/// ```
/// use trainer::Metrics;
///
/// let metrics: Metrics = [("valid/loss".to_owned(), 0.25)].into_iter().collect();
/// assert_eq!(metrics["valid/loss"], 0.25);
/// assert_eq!(metrics.get("valid/accuracy"), None);
/// assert_eq!(metrics.to_string(), "valid/loss 0.2500");
/// ```
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Metrics(#[serde(with = "indexmap::map::serde_seq")] ByName<f64>);

impl Metrics {
    /// Returns the value of the metric with this name, such as `valid/loss`, if there is one.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<f64> {
        self.0.get(name).copied()
    }

    /// Returns all names and values, in the order in which they were first logged.
    pub fn iter(&self) -> impl Iterator<Item = (&str, f64)> {
        self.0.iter().map(|(name, value)| (name.as_str(), *value))
    }
}

impl FromIterator<(String, f64)> for Metrics {
    fn from_iter<I: IntoIterator<Item = (String, f64)>>(values: I) -> Self {
        Metrics(values.into_iter().collect())
    }
}

/// Returns a metric that is known to exist: `metrics["valid/loss"]`.
///
/// # Panics
///
/// Panics if there is no metric with this name; the message lists those that exist.
impl Index<&str> for Metrics {
    type Output = f64;

    fn index(&self, name: &str) -> &f64 {
        match self.0.get(name) {
            Some(value) => value,
            None => {
                let names: Vec<_> = self.iter().map(|(name, _)| format!("`{name}`")).collect();
                let listed = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
                panic!("no metric is named `{name}`; the metrics are {listed}")
            }
        }
    }
}

/// Formats all metrics on one line: `train/loss 0.0353  valid/loss 0.0719`.
impl fmt::Display for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (nth, (name, value)) in self.iter().enumerate() {
            let between = if nth == 0 { "" } else { "  " };
            write!(f, "{between}{name} {}", readable(value))?;
        }
        Ok(())
    }
}

/// The metrics of one call to `fit`, `validate`, `test` or `predict` over time, as columns. `fit`
/// adds one row per epoch and one per validation within an epoch; any other call adds at most one.
///
/// Each row includes the counters at the time of its measurement. To compare runs that differ in
/// batch size, gradient accumulation or number of processes, use
/// [`samples_seen`](Counters::samples_seen) as the axis.
///
/// ```
/// # use trainer::Summary;
/// # fn plot(summary: &Summary) {
/// for (counters, loss) in summary.history.points("valid/loss") {
///     println!("{} {loss}", counters.samples_seen);
/// }
/// let losses: &[f64] = &summary.history["train/loss"];
/// # }
/// ```
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct History {
    steps: Vec<Counters>,
    #[serde(with = "indexmap::map::serde_seq")]
    columns: ByName<Vec<f64>>,
}

impl History {
    /// Returns the number of rows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.steps.len()
    }

    /// Returns whether there are no rows.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Returns the counters of each row.
    #[must_use]
    pub fn steps(&self) -> &[Counters] {
        &self.steps
    }

    /// Returns every column with its name, `phase/name`. A column is NaN in the rows for which it
    /// has no value.
    pub fn columns(&self) -> impl Iterator<Item = (&str, &[f64])> {
        self.columns.iter().map(|(name, values)| (name.as_str(), values.as_slice()))
    }

    /// Returns the column with this name, if there is one. It is NaN in the rows for which it has
    /// no value.
    #[must_use]
    pub fn column(&self, name: &str) -> Option<&[f64]> {
        self.columns.get(name).map(Vec::as_slice)
    }

    /// Returns the values of a column with their counters, skipping rows without a value. The
    /// iterator is empty if there is no such column.
    pub fn points(&self, name: &str) -> impl Iterator<Item = (Counters, f64)> {
        let values = self.column(name).unwrap_or_default();
        self.steps.iter().copied().zip(values.iter().copied()).filter(|(_, value)| !is_absent(*value))
    }

    /// Returns the column names and values of a row, skipping missing values.
    pub(crate) fn row(&self, row: usize) -> impl Iterator<Item = (&str, f64)> {
        let values = self.columns().map(move |(name, values)| (name, values[row]));
        values.filter(|(_, value)| !is_absent(*value))
    }

    /// Keeps only the first `rows` rows.
    pub(crate) fn truncate(&mut self, rows: usize) {
        self.steps.truncate(rows);
        self.columns.values_mut().for_each(|values| values.truncate(rows));
    }

    /// Adds a row, or extends the last row if it has the same counters.
    pub(crate) fn record<'m>(&mut self, step: Counters, metrics: impl Iterator<Item = (&'m str, f64)>) {
        if self.steps.last() != Some(&step) {
            self.steps.push(step);
            self.columns.values_mut().for_each(|values| values.push(ABSENT));
        }
        if self.columns.is_empty() {
            self.columns.reserve(metrics.size_hint().1.unwrap_or_default());
        }
        // Most rows have the same names in the same order.
        let mut next = 0;
        for (name, value) in metrics {
            if self.columns.get_index(next).is_none_or(|(own, _)| own != name) {
                let rows = self.steps.len();
                let entry = self.columns.entry(name.to_owned());
                next = entry.index();
                entry.or_insert_with(|| vec![ABSENT; rows]);
            }
            if let Some(last) = self.columns[next].last_mut() {
                *last = value;
            }
            next += 1;
        }
    }

    /// Returns the last value of each column.
    pub(crate) fn last(&self) -> Metrics {
        let mut last = Metrics::default();
        last.0.reserve(self.columns.len());
        last.0.extend(self.columns().filter_map(|(name, values)| {
            Some((name.to_owned(), *values.iter().rev().find(|value| !is_absent(**value))?))
        }));
        last
    }
}

/// Marks a missing value: a dedicated NaN payload, distinguishable from a measured NaN.
const ABSENT: f64 = f64::from_bits(0x7ff8_0000_0000_0a85);

fn is_absent(value: f64) -> bool {
    value.to_bits() == ABSENT.to_bits()
}

/// Compares values by their bits, so NaN equals NaN: two histories of the same run are equal.
impl PartialEq for History {
    fn eq(&self, other: &Self) -> bool {
        let bits = |(name, values): (&String, &Vec<f64>)| {
            (name.clone(), values.iter().map(|value| value.to_bits()).collect::<Vec<_>>())
        };
        self.steps == other.steps && self.columns.iter().map(bits).eq(other.columns.iter().map(bits))
    }
}

/// Returns a column that is known to exist: `history["valid/loss"]`.
///
/// # Panics
///
/// Panics if there is no such column; the message suggests a similar one.
impl Index<&str> for History {
    type Output = [f64];

    fn index(&self, name: &str) -> &[f64] {
        self.column(name).unwrap_or_else(|| {
            let similar = did_you_mean(name, self.columns().map(|(own, _)| own));
            panic!("the history has no column `{name}`{similar}")
        })
    }
}

/// The result of an entry point of the trainer.
///
/// ```
/// use trainer::prelude::*;
///
/// # let inputs = Tensor::randn([64, 4], (Kind::Float, Device::Cpu));
/// # let labels = inputs.select(1, 0).gt(0.0).to_kind(Kind::Int64);
/// # let vs = nn::VarStore::new(Device::Cpu);
/// # let net = nn::linear(vs.root() / "fc", 4, 2, Default::default());
/// # let task = Supervised::new(vs, net, |logits, labels| logits.cross_entropy_for_logits(labels));
/// # let mut train = InMemory::new((inputs, labels))?.batch_size(16);
/// # let mut trainer = Trainer::builder(task).optimizer(Sgd::new(0.1)).build()?;
/// let summary = trainer.fit(&mut train, None)?;
/// println!("{} epochs: {}", summary.history.len(), summary.metrics);
/// assert!(summary.warnings.is_empty());
/// # Ok::<(), trainer::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Summary {
    /// The counters at the end.
    pub counters: Counters,
    /// The last value of each metric of this entry point, keyed by `phase/name`:
    /// `summary.metrics["valid/loss"]`.
    pub metrics: Metrics,
    /// All metrics of this entry point, over time.
    pub history: History,
    /// The reason why the run stopped early, if a hook requested a stop or `max_time` was reached.
    pub stopped: Option<String>,
    /// The warnings from hooks ([`Cx::warn`](crate::Cx::warn)) and from the trainer, without
    /// duplicates. They include warnings that were issued since the end of the previous entry
    /// point, for example by [`find_lr`](crate::Trainer::find_lr).
    pub warnings: Vec<String>,
    /// The log files and server addresses that lack rows of this run because the rows could not be
    /// written. There is a warning for each.
    pub incomplete_logs: Vec<String>,
}

impl Summary {
    /// Builds the summary of an entry point that had already finished when the checkpoint was
    /// written.
    pub(crate) fn recorded(counters: Counters, metrics: Metrics, stopped: Option<String>) -> Self {
        let mut history = History::default();
        history.record(counters, metrics.iter());
        Summary { counters, metrics, history, stopped, warnings: Vec::new(), incomplete_logs: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_may_have_different_names_in_any_order() {
        let at = |step| Counters { optimizer_steps: step, ..Counters::default() };
        let mut history = History::default();
        history.record(at(1), [("a", 1.0), ("b", 2.0), ("c", 3.0)].into_iter());
        history.record(at(2), [("c", 6.0), ("a", 4.0)].into_iter());
        history.record(at(3), [("d", 7.0), ("b", 8.0), ("c", 9.0)].into_iter());
        history.record(at(3), [("a", 10.0)].into_iter());
        let rows = |row| history.row(row).collect::<Vec<_>>();
        assert_eq!(rows(0), [("a", 1.0), ("b", 2.0), ("c", 3.0)]);
        assert_eq!(rows(1), [("a", 4.0), ("c", 6.0)]);
        assert_eq!(rows(2), [("a", 10.0), ("b", 8.0), ("c", 9.0), ("d", 7.0)]);
        assert_eq!(history.len(), 3);
    }
}
