//! [`Metric`]: the last and best values of a metric in a run.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::points::{Point, Span};
use crate::float::Float;

/// Whether smaller or larger values of a metric are better.
#[doc(alias = "mode")]
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Goal {
    /// Smaller values are better, as for a loss.
    Minimize,
    /// Larger values are better, as for an accuracy.
    Maximize,
}

impl Goal {
    /// Returns whether `one` is better than `other`. NaN is never better, and nothing is better
    /// than NaN.
    #[must_use]
    pub fn is_better(self, one: f64, other: f64) -> bool {
        match self {
            Goal::Minimize => one < other,
            Goal::Maximize => one > other,
        }
    }

    /// Returns the goal of a metric if its name determines the goal: a loss, such as `train/loss`
    /// or `valid/clean/loss`, is minimized.
    #[must_use]
    pub fn of_name(metric: &str) -> Option<Self> {
        let own = metric.rsplit_once('/').map_or(metric, |(_, own)| own);
        (own == "loss").then_some(Goal::Minimize)
    }
}

/// The last, smallest and largest value of a metric in a run. Only values for whole passes over
/// data count.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Metric {
    /// The last value.
    pub last: Float,
    /// The smallest value; `None` if every value was NaN.
    pub min: Option<Extreme>,
    /// The largest value; `None` if every value was NaN.
    pub max: Option<Extreme>,
    /// Whether smaller or larger values are better; `None` if that is not known.
    #[serde(default)]
    pub goal: Option<Goal>,
}

/// The smallest or largest value of a metric, and when it was measured.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Extreme {
    /// The value.
    pub value: Float,
    /// The epoch, counted from 0.
    pub epoch: u64,
    /// The number of optimizer steps before the measurement.
    pub optimizer_steps: u64,
}

impl Extreme {
    /// Returns a value that was measured in this epoch, after this number of optimizer steps.
    #[must_use]
    pub fn new(value: f64, epoch: u64, optimizer_steps: u64) -> Self {
        Extreme { value: Float(value), epoch, optimizer_steps }
    }
}

impl Metric {
    /// Returns a metric with only a first value.
    #[must_use]
    pub fn new(first: Extreme, goal: Option<Goal>) -> Self {
        let mut metric = Metric { last: first.value, min: None, max: None, goal };
        metric.add(first);
        metric
    }

    /// Adds a later value.
    pub fn add(&mut self, value: Extreme) {
        self.last = value.value;
        for (own, goal) in [(&mut self.min, Goal::Minimize), (&mut self.max, Goal::Maximize)] {
            let is_better = own.is_none_or(|own| goal.is_better(value.value.0, own.value.0));
            if is_better && !value.value.0.is_nan() {
                *own = Some(value);
            }
        }
    }

    /// Returns the best value, if it is known whether smaller or larger values are better.
    #[must_use]
    pub fn best(&self) -> Option<Extreme> {
        self.best_by(self.goal?)
    }

    /// Returns the best value for this goal.
    #[must_use]
    pub fn best_by(&self, goal: Goal) -> Option<Extreme> {
        match goal {
            Goal::Minimize => self.min,
            Goal::Maximize => self.max,
        }
    }
}

/// Metrics by name: `valid/loss`.
pub type Metrics = BTreeMap<String, Metric>;

/// Returns the metrics of a run, computed from its points for whole passes over data.
#[must_use]
pub fn metrics_of(points: &[Point]) -> Metrics {
    let mut metrics = Metrics::new();
    for point in points.iter().filter(|point| point.span == Span::Pass) {
        let value = Extreme::new(point.value, point.epoch, point.optimizer_steps);
        match metrics.get_mut(&*point.name) {
            Some(metric) => metric.add(value),
            None => {
                let name = point.name.to_string();
                let metric = Metric::new(value, Goal::of_name(&name));
                metrics.insert(name, metric);
            }
        }
    }
    metrics
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_value_follows_the_goal_and_ignores_nan() {
        let mut metric = Metric::new(Extreme::new(f64::NAN, 0, 0), None);
        assert_eq!((metric.min, metric.best()), (None, None));
        for (step, value) in [0.5, 0.25, f64::NAN, 0.75, 0.75].into_iter().enumerate() {
            metric.add(Extreme::new(value, 1, step as u64));
        }
        assert_eq!(metric.last, Float(0.75));
        assert_eq!(metric.best_by(Goal::Minimize), Some(Extreme::new(0.25, 1, 1)));
        assert_eq!(metric.best_by(Goal::Maximize), Some(Extreme::new(0.75, 1, 3)));
        assert_eq!(metric.best(), None);
        metric.goal = Some(Goal::Maximize);
        assert_eq!(metric.best(), metric.max);
        for (name, goal) in
            [("train/loss", true), ("loss", true), ("valid/clean/loss", true), ("valid/loss_ratio", false)]
        {
            assert_eq!(Goal::of_name(name).is_some(), goal, "{name}");
        }
    }
}
