//! [`Every`]: the interval of a recurring action.

use serde::{Deserialize, Serialize};

use crate::values::amount::floor_with_tolerance;

/// The interval of a recurring action of the loop, such as validation.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Every {
    /// Every `n` epochs.
    Epochs(u64),
    /// Every `n` optimizer steps, counted over all epochs.
    Steps(u64),
    /// Each time this fraction of the batches of an epoch has been processed: `Fraction(0.25)` is
    /// four times per epoch.
    Fraction(f64),
}

/// Whether an interval ends after `done` of the `batches` batches in a pass. The length of an
/// interval is `fraction` of the pass.
pub(crate) fn ends_interval(fraction: f64, batches: u64, done: u64) -> bool {
    let [before, now] = [done.saturating_sub(1), done]
        .map(|done| floor_with_tolerance(done as f64 / (batches as f64 * fraction)));
    now > before
}
