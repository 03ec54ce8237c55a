//! Regression metrics: MSE, MAE, R², explained variance.

use tch::Tensor;

use super::moments::{self, MOMENTS, MOMENTS_STATE, Moments};
use super::state::{StateReduction, States};
use super::{Metric, check_pair, exact, scalar, sum_kind};
use crate::error::Result;
use crate::log::history::Goal;

/// The name of the state with the number of elements or samples.
const COUNT: &str = "count";

/// Adds `count` to the number of elements or samples, without reading a tensor from its device.
pub(super) fn add_count(states: &mut States, count: i64) {
    if let Some([total]) = states.counts_mut(COUNT, 1) {
        *total += count;
    } else {
        states.update(COUNT, Tensor::from_slice(&[count]));
    }
}

/// Reads the number of elements or samples.
#[expect(clippy::cast_precision_loss, reason = "a count of samples")]
pub(super) fn count(states: &States) -> Result<f64> {
    Ok(states.ints(COUNT)?.first().copied().unwrap_or(0) as f64)
}

pub(super) const COUNT_STATE: (&str, StateReduction) = (COUNT, StateReduction::Sum);

/// Returns `pred - target` in the dtype of sums.
fn difference(pred: &Tensor, target: &Tensor) -> Tensor {
    exact(pred) - exact(target)
}

/// Adds a function of the errors of a batch to a state, and the number of its elements to their
/// count.
pub(super) fn add_errors(
    metric: &mut impl Metric,
    pred: &Tensor,
    target: &Tensor,
    state: &str,
    of: fn(&Tensor) -> Tensor,
) -> Result<()> {
    check_pair(metric, pred, target)?;
    if pred.numel() > 0 {
        metric.states_mut().update(state, of(&difference(pred, target)).sum(sum_kind(pred)));
        add_count(metric.states_mut(), numel(pred));
    }
    Ok(())
}

macro_rules! state_of {
    () => {
        state_of!(states);
    };
    ($($field:ident).+) => {
        fn states(&self) -> &States {
            &self.$($field).+
        }

        fn states_mut(&mut self) -> &mut States {
            &mut self.$($field).+
        }
    };
}
pub(super) use state_of;

/// The mean of the squared errors of all elements. Corresponds to torchmetrics' `MeanSquaredError`.
///
/// Use this when large errors should count disproportionately. If there are outliers, use
/// [`MeanAbsoluteError`].
///
/// ```
/// use trainer::metrics::{Metric, MeanSquaredError};
/// use trainer::tch::Tensor;
///
/// let mut error = MeanSquaredError::new();
/// error.update(&Tensor::from_slice(&[1.0, 2.0]), &Tensor::from_slice(&[1.0, 4.0]))?;
/// assert_eq!(error.compute()?.double_value(&[]), 2.0);
/// assert_eq!(error.root(true).compute()?.double_value(&[]), 2.0_f64.sqrt());
/// # Ok::<(), trainer::Error>(())
/// ```
#[doc(alias("MSE", "RMSE"))]
#[derive(Clone, Debug)]
pub struct MeanSquaredError {
    is_root: bool,
    states: States,
}

impl MeanSquaredError {
    /// Creates the metric, which is logged as `mse`.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "no metric has a default")]
    pub fn new() -> Self {
        MeanSquaredError {
            is_root: false,
            states: States::new([("squares", StateReduction::Sum), COUNT_STATE]),
        }
    }

    /// Sets whether to compute the square root of the mean, like torchmetrics' `squared=False`. The
    /// metric is then logged as `rmse`. Defaults to `false`.
    #[must_use]
    pub fn root(mut self, root: bool) -> Self {
        self.is_root = root;
        self
    }
}

impl Metric for MeanSquaredError {
    fn name(&self) -> String {
        if self.is_root { "rmse" } else { "mse" }.to_owned()
    }

    fn goal(&self) -> Option<Goal> {
        Some(Goal::Minimize)
    }

    fn update(&mut self, pred: &Tensor, target: &Tensor) -> Result<()> {
        add_errors(self, pred, target, "squares", Tensor::square)
    }

    fn compute(&mut self) -> Result<Tensor> {
        let squares = self.states.floats("squares")?.first().copied().ok_or_else(|| self.no_data())?;
        let mean = squares / count(&self.states)?;
        Ok(scalar(if self.is_root { mean.sqrt() } else { mean }))
    }

    state_of!();
}

/// The mean of the absolute errors of all elements. Corresponds to torchmetrics'
/// `MeanAbsoluteError`.
///
/// Use this when errors should count in proportion to their size, for example because there are
/// outliers.
///
/// ```
/// use trainer::metrics::{Metric, MeanAbsoluteError};
/// use trainer::tch::Tensor;
///
/// let mut error = MeanAbsoluteError::new();
/// error.update(&Tensor::from_slice(&[1.0, 2.0]), &Tensor::from_slice(&[1.0, 4.0]))?;
/// assert_eq!(error.compute()?.double_value(&[]), 1.0);
/// # Ok::<(), trainer::Error>(())
/// ```
#[doc(alias = "MAE")]
#[derive(Clone, Debug)]
pub struct MeanAbsoluteError {
    states: States,
}

impl MeanAbsoluteError {
    /// Creates the metric, which is logged as `mae`.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "no metric has a default")]
    pub fn new() -> Self {
        MeanAbsoluteError { states: States::new([("errors", StateReduction::Sum), COUNT_STATE]) }
    }
}

impl Metric for MeanAbsoluteError {
    fn name(&self) -> String {
        "mae".to_owned()
    }

    fn goal(&self) -> Option<Goal> {
        Some(Goal::Minimize)
    }

    fn update(&mut self, pred: &Tensor, target: &Tensor) -> Result<()> {
        add_errors(self, pred, target, "errors", Tensor::abs)
    }

    fn compute(&mut self) -> Result<Tensor> {
        let errors = self.states.floats("errors")?.first().copied().ok_or_else(|| self.no_data())?;
        Ok(scalar(errors / count(&self.states)?))
    }

    state_of!();
}

/// Returns an error if `outputs`, the number of outputs of a batch, differs from that of the
/// previous batches, which is the size of the last dimension of the state named `state`.
pub(super) fn check_outputs(metric: &impl Metric, state: &str, outputs: i64) -> Result<()> {
    let before = metric.states().last_size(state).and_then(|size| size.last().copied());
    match before.filter(|before| *before != outputs) {
        None => Ok(()),
        Some(before) => Err(metric.error(&format!(
            "the number of outputs changed from {before} to {outputs}: expected the same number in every batch"
        ))),
    }
}

/// Adds the moments of the targets and the errors of a batch of shape `[n]` or `[n, outputs]`.
fn update_moments(metric: &mut impl Metric, pred: &Tensor, target: &Tensor) -> Result<()> {
    check_pair(metric, pred, target)?;
    if !(1..=2).contains(&pred.dim()) {
        return Err(metric
            .error(&format!("the prediction has shape {:?}: expected [n] or [n, outputs]", pred.size())));
    }
    if pred.numel() == 0 {
        return Ok(());
    }
    let samples = pred.size()[0];
    let [pred, target] = [pred, target].map(|tensor| exact(tensor).reshape([samples, -1]));
    check_outputs(metric, MOMENTS, pred.size()[1])?;
    moments::update(metric.states_mut(), &target, &(&target - pred));
    Ok(())
}

/// Reads the moments of the target and the error of each output.
fn read_moments(metric: &impl Metric) -> Result<Vec<Moments>> {
    let moments = moments::read(metric.states())?;
    if moments.is_empty() { Err(metric.no_data()) } else { Ok(moments) }
}

/// Implements [`Metric`] for a value that is computed from [`MOMENTS`] and averaged over the
/// outputs.
macro_rules! of_moments {
    ($metric:ident, $name:literal) => {
        impl Metric for $metric {
            fn name(&self) -> String {
                $name.to_owned()
            }

            fn goal(&self) -> Option<Goal> {
                Some(Goal::Maximize)
            }

            fn update(&mut self, pred: &Tensor, target: &Tensor) -> Result<()> {
                update_moments(self, pred, target)
            }

            fn compute(&mut self) -> Result<Tensor> {
                Ok(mean(&self.outputs()?))
            }

            fn compute_per_class(&mut self) -> Result<Option<Tensor>> {
                Ok(Some(Tensor::from_slice(&self.outputs()?)))
            }

            state_of!();
        }
    };
}

#[expect(clippy::cast_precision_loss, reason = "a number of outputs")]
fn mean(values: &[f64]) -> Tensor {
    scalar(values.iter().sum::<f64>() / values.len() as f64)
}

/// The coefficient of determination, R², averaged over the outputs. Corresponds to torchmetrics'
/// `R2Score`.
///
/// Use this when you compare a model with a baseline that always predicts the mean.
///
/// Predictions and targets have shape `[n]` or `[n, outputs]`. As in torchmetrics, R² is 1 if the
/// sum of squared errors is at most 1e-4. Otherwise, it is 0 if the total sum of squares is at most
/// 1e-4, as with constant targets.
///
/// ```
/// use trainer::metrics::{Metric, R2Score};
/// use trainer::tch::Tensor;
///
/// let mut r2 = R2Score::new();
/// r2.update(&Tensor::from_slice(&[2.5, 0.0, 2.0, 8.0]), &Tensor::from_slice(&[3.0, -0.5, 2.0, 7.0]))?;
/// assert!((r2.compute()?.double_value(&[]) - 0.9486).abs() < 1e-4);
/// # Ok::<(), trainer::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct R2Score {
    states: States,
}

impl R2Score {
    /// Creates the metric, which is logged as `r2`.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "no metric has a default")]
    pub fn new() -> Self {
        R2Score { states: States::new([MOMENTS_STATE]) }
    }

    fn outputs(&self) -> Result<Vec<f64>> {
        let moments = read_moments(self)?;
        if moments.iter().any(|moments| moments.count < 2.0) {
            return Err(self.error("the data has only 1 sample: expected at least 2"));
        }
        let scores = moments.iter().map(|moments| {
            let total = moments.deviations(0);
            let residuals = moments.deviations(1) + moments.count * moments.mean[1].powi(2);
            match (residuals <= 1e-4, total <= 1e-4) {
                (true, _) => 1.0,
                (false, true) => 0.0,
                (false, false) => 1.0 - residuals / total,
            }
        });
        Ok(scores.collect())
    }
}

of_moments!(R2Score, "r2");

/// The explained variance, averaged over the outputs. Corresponds to torchmetrics'
/// `ExplainedVariance`.
///
/// Use this instead of [`R2Score`] when a constant offset of the predictions should not matter.
///
/// Predictions and targets have shape `[n]` or `[n, outputs]`.
///
/// ```
/// use trainer::metrics::{Metric, ExplainedVariance};
/// use trainer::tch::Tensor;
///
/// let mut variance = ExplainedVariance::new();
/// variance.update(&Tensor::from_slice(&[2.5, 0.0, 2.0, 8.0]), &Tensor::from_slice(&[3.0, -0.5, 2.0, 7.0]))?;
/// assert!((variance.compute()?.double_value(&[]) - 0.9572).abs() < 1e-4);
/// # Ok::<(), trainer::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct ExplainedVariance {
    states: States,
}

impl ExplainedVariance {
    /// Creates the metric, which is logged as `explained_variance`.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "no metric has a default")]
    pub fn new() -> Self {
        ExplainedVariance { states: States::new([MOMENTS_STATE]) }
    }

    fn outputs(&self) -> Result<Vec<f64>> {
        let scores = read_moments(self)?.into_iter().map(|moments| {
            let [denom, num] = [0, 1].map(|variable| moments.deviations(variable));
            match (num == 0.0, denom == 0.0) {
                (true, _) => 1.0,
                (false, true) => 0.0,
                (false, false) => 1.0 - num / denom,
            }
        });
        Ok(scores.collect())
    }
}

of_moments!(ExplainedVariance, "explained_variance");

pub(super) fn numel(tensor: &Tensor) -> i64 {
    super::labels::int(tensor.numel())
}
