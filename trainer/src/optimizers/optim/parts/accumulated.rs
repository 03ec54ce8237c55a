//! [`Accumulated`]: the weights of the batches whose gradients are accumulated.

use serde::{Deserialize, Serialize};

/// The weights of the batches whose gradients a part has accumulated.
///
/// Each batch adds the gradient of its loss, multiplied by `weight / reference`. Multiplying the
/// accumulated gradients by `reference / sum` yields the weighted mean. `sum` and `reference` are 0
/// if no batch with a non-zero weight has been accumulated.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
pub(crate) struct Accumulated {
    /// The sum of the weights.
    pub(crate) sum: f64,
    /// The first non-zero weight or, once the gradients have been scaled to their mean, the sum of
    /// the weights at that time.
    pub(crate) reference: f64,
    /// Whether all accumulated batches had a weight of 0, for example because this rank trains
    /// independently and has no rows of these batches. The gradients are then 0, and the optimizer
    /// step does nothing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) is_weightless: bool,
}

impl Accumulated {
    /// Returns the factor by which the loss of a batch of this weight is multiplied: exactly 1 for
    /// the first batch.
    pub(super) fn factor(self, weight: f64) -> f64 {
        if self.sum > 0.0 { weight / self.reference } else { 1.0 }
    }

    /// Adds the weight of a batch.
    pub(super) fn add(&mut self, weight: f64) {
        if self.sum == 0.0 {
            self.reference = weight;
        }
        self.sum += weight;
        self.is_weightless = self.sum == 0.0;
    }

    /// Returns whether any batch has been accumulated.
    pub(super) fn has_batches(self) -> bool {
        self.sum > 0.0 || self.is_weightless
    }

    /// Returns whether the values are consistent. Used to validate values from a checkpoint.
    pub(crate) fn is_sound(self) -> bool {
        let Accumulated { sum, reference, is_weightless: _ } = self;
        sum.is_finite() && (sum == 0.0 || 0.0 < sum && 0.0 < reference && reference <= sum)
    }
}

#[cfg(test)]
mod tests {
    use super::Accumulated;

    #[test]
    fn invalid_sums_of_weights_are_detected() {
        let sound = [(0.0, 0.0), (32.0, 32.0), (101.0, 32.0), (2.5, 1e-300)];
        let unsound = [
            (-1.0, 1.0),
            (f64::NAN, 1.0),
            (f64::INFINITY, 1.0),
            (32.0, 0.0),
            (32.0, -1.0),
            (32.0, f64::NAN),
            (32.0, 33.0),
        ];
        for (expected, cases) in [(true, &sound[..]), (false, &unsound)] {
            for &(sum, reference) in cases {
                let accumulated = Accumulated { sum, reference, is_weightless: false };
                assert_eq!(accumulated.is_sound(), expected, "{sum} {reference}");
            }
        }
    }
}
