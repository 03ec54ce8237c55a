//! [`Average`]: averaging over classes.

use serde::{Deserialize, Serialize};

/// How the values of several classes are averaged. The names are those of torchmetrics' `average`.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Average {
    /// One value, computed from the counts summed over all classes.
    Micro,
    /// The mean over the classes. In a multiclass metric, classes that occur neither in the
    /// predictions nor in the targets are left out.
    Macro,
    /// The mean over the classes, weighted by the number of targets of each class.
    Weighted,
    /// One value for each class. Called `none` in torchmetrics.
    PerClass,
}

/// Returns `num / denom`, or 0 if the denominator is 0.
pub(super) fn safe_divide(num: f64, denom: f64) -> f64 {
    if denom == 0.0 { 0.0 } else { num / denom }
}

/// Returns the weighted mean of pairs of a value and its weight, or 0 if all weights are 0.
pub(super) fn weighted_mean(values: impl IntoIterator<Item = (f64, f64)>) -> f64 {
    let (sum, weights) = values
        .into_iter()
        .fold((0.0, 0.0), |(sum, weights), (value, weight)| (sum + value * weight, weights + weight));
    safe_divide(sum, weights)
}
