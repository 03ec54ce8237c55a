//! [`CalibrationError`]: the calibration error of probabilities.

use tch::{Kind, Tensor};

use super::average::safe_divide;
use super::labels::{Classes, Kinds, LIMITS, LIMITS_STATE, int, is_any_nan, is_any_outside, is_used, rows};
use super::regression::state_of;
use super::state::{StateReduction, States};
use super::{Metric, scalar, sum_kind};
use crate::error::Result;
use crate::log::history::Goal;

/// How [`CalibrationError`] combines the errors of its bins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CalibrationNorm {
    /// The mean of the errors, weighted by the number of samples in each bin: the expected
    /// calibration error.
    L1,
    /// The square root of the weighted mean of the squared errors. The weights are the numbers of
    /// samples in the bins.
    L2,
    /// The largest error: the maximum calibration error.
    Max,
}

/// The calibration error: the difference between confidence and accuracy in confidence bins of
/// equal width. Corresponds to torchmetrics' `CalibrationError` (Guo et al., *On calibration of
/// modern neural networks*, 2017).
///
/// Use this when you rely on the probabilities themselves, not only on the most likely class.
///
/// The state has three numbers for each bin, so it does not grow with the data.
///
/// ```
/// use trainer::metrics::{Metric, CalibrationError};
/// use trainer::tch::Tensor;
///
/// let mut error = CalibrationError::binary();
/// error.update(&Tensor::from_slice(&[0.9, 0.9]), &Tensor::from_slice(&[1i64, 0]))?;
/// assert!((error.compute()?.double_value(&[]) - 0.4).abs() < 1e-6); // 0.9, but 1 of 2 is positive
/// # Ok::<(), trainer::Error>(())
/// ```
#[doc(alias = "ECE")]
#[derive(Clone, Debug)]
pub struct CalibrationError {
    classes: Classes,
    bins: usize,
    norm: CalibrationNorm,
    states: States,
}

/// The name of the state. For each bin, the state contains the number of samples, the number of
/// correct samples (in a binary metric: of positives), and the sum of the confidences. There is an
/// extra bin for confidences of 1.
const BINS: &str = "bins";

impl CalibrationError {
    /// Creates the metric for targets 0 and 1. The confidence is the score, and the accuracy is the
    /// fraction of positives. Corresponds to torchmetrics' `BinaryCalibrationError`.
    #[must_use]
    pub fn binary() -> Self {
        Self::of(Kinds::Binary)
    }

    /// Creates the metric for targets from 0 to `classes - 1`. Predictions are scores of shape
    /// `[n, classes, …]`, and the confidence is the largest score. Corresponds to torchmetrics'
    /// `MulticlassCalibrationError`.
    #[must_use]
    pub fn multiclass(classes: usize) -> Self {
        Self::of(Kinds::Multiclass(classes))
    }

    fn of(kinds: Kinds) -> Self {
        let states = States::new([(BINS, StateReduction::Sum), LIMITS_STATE]);
        CalibrationError { classes: Classes::new(kinds), bins: 15, norm: CalibrationNorm::L1, states }
    }

    /// Sets the number of bins. Defaults to 15.
    #[must_use]
    pub fn bins(mut self, bins: usize) -> Self {
        self.bins = bins;
        self
    }

    /// Sets how the errors of the bins are combined. Defaults to [`CalibrationNorm::L1`].
    #[must_use]
    pub fn norm(mut self, norm: CalibrationNorm) -> Self {
        self.norm = norm;
        self
    }

    ignore_setting!(classes);
    logits_setting!(classes);
}

impl Metric for CalibrationError {
    fn name(&self) -> String {
        "calibration_error".to_owned()
    }

    fn goal(&self) -> Option<Goal> {
        Some(Goal::Minimize)
    }

    fn check(&self) -> Result<()> {
        if self.bins == 0 {
            return Err(self.error("`.bins(0)`: expected at least 1"));
        }
        self.classes.mistake().map_or(Ok(()), |mistake| Err(self.error(&mistake)))
    }

    fn update(&mut self, pred: &Tensor, target: &Tensor) -> Result<()> {
        self.check()?;
        if self.classes.check_scores("calibration_error", pred, target)? {
            return Ok(());
        }
        let target = target.to_kind(Kind::Int64).flatten(0, -1);
        let is_used = is_used(&target, self.classes.ignored);
        let is_left_out = is_used.logical_not();
        let scores = match self.classes.kinds {
            Kinds::Multiclass(len) => rows(&pred.detach(), len).masked_fill(&is_left_out.unsqueeze(1), 0.5),
            Kinds::Binary | Kinds::Multilabel(_) => {
                pred.detach().flatten(0, -1).masked_fill(&is_left_out, 0.5)
            }
        };
        self.states.update(
            BINS,
            self.classes.for_each_case(|classes| self.sums(classes, &scores, &target, &is_used)),
        );
        let checked = target.masked_fill(&is_left_out, 0);
        let zero = Tensor::zeros([], (Kind::Int64, pred.device()));
        let [nan, outside] = [is_any_nan(&scores), is_any_outside(&scores)];
        self.states.update(
            LIMITS,
            Tensor::stack(&[-checked.min(), checked.max(), zero.shallow_clone(), zero, nan, outside], 0),
        );
        Ok(())
    }

    fn compute(&mut self) -> Result<Tensor> {
        self.classes.check_limits("calibration_error", &self.states)?;
        let sums = self.states.floats(BINS)?;
        let sums = self.classes.decided(&sums, &self.states)?;
        let samples: f64 = sums.iter().take(self.bins + 1).sum();
        if samples == 0.0 {
            return Err(self.no_data());
        }
        let (counts, rest) = sums.split_at(self.bins + 1);
        let (right, confidences) = rest.split_at(self.bins + 1);
        let errors = counts.iter().zip(right.iter().zip(confidences)).map(|(count, (right, confidence))| {
            ((safe_divide(*right, *count) - safe_divide(*confidence, *count)).abs(), count / samples)
        });
        Ok(scalar(match self.norm {
            CalibrationNorm::L1 => errors.map(|(error, share)| error * share).sum(),
            CalibrationNorm::L2 => errors.map(|(error, share)| error * error * share).sum::<f64>().sqrt(),
            CalibrationNorm::Max => errors.map(|(error, _)| error).fold(0.0, f64::max),
        }))
    }

    state_of!();
}

impl CalibrationError {
    /// Returns what a batch adds to the bins, of shape `[3, bins + 1]`.
    fn sums(&self, classes: &Classes, scores: &Tensor, target: &Tensor, is_used: &Tensor) -> Tensor {
        let (confidence, is_right) = if classes.is_multiclass() {
            let (confidence, label) = classes.class_probabilities(scores).max_dim(1, false);
            (confidence, label.eq_tensor(target))
        } else {
            (classes.probabilities(scores), target.eq(1))
        };
        let kind = sum_kind(scores);
        let confidence = confidence.to_kind(kind);
        let edges = Tensor::linspace(0.0, 1.0, int(self.bins) + 1, (kind, scores.device()));
        // A confidence of 1 has its own bin, as in torchmetrics.
        let bin = (confidence.contiguous().bucketize(&edges, false, true) - 1).clamp(0, int(self.bins));
        let used = is_used.to_kind(kind);
        let sums = Tensor::stack(
            &[
                used.shallow_clone(),
                is_right.to_kind(kind) * &used,
                confidence.nan_to_num(0.0, 0.0, 0.0) * &used,
            ],
            0,
        );
        let zeros = Tensor::zeros([3, int(self.bins) + 1], (kind, scores.device()));
        zeros.scatter_add(1, &bin.expand([3, -1], false), &sums)
    }
}
