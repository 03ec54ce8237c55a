//! The correlation between predictions and targets: Pearson and Spearman.

use std::ops::Range;

use tch::{Kind, Tensor};

use super::labels::{histogram, int};
use super::moments::{self, MOMENTS, MOMENTS_STATE, Moments};
use super::ranking::ranks;
use super::regression::{check_outputs, state_of};
use super::state::{StateReduction, States};
use super::{Metric, check_pair, exact, scalar};
use crate::error::Result;

/// Checks a batch of shape `[n]` or `[n, outputs]`. The number of outputs must equal the last
/// dimension of `state`, if the state has a value. Returns the batch as `[n, outputs]`, or `None`
/// if it is empty.
fn columns(metric: &impl Metric, state: &str, pred: &Tensor, target: &Tensor) -> Result<Option<[Tensor; 2]>> {
    check_pair(metric, pred, target)?;
    if !(1..=2).contains(&pred.dim()) {
        return Err(metric
            .error(&format!("the prediction has shape {:?}: expected [n] or [n, outputs]", pred.size())));
    }
    if pred.numel() == 0 {
        return Ok(None);
    }
    check_outputs(metric, state, pred.size().get(1).copied().unwrap_or(1))?;
    Ok(Some([pred, target].map(|tensor| exact(tensor).reshape([pred.size()[0], -1]))))
}

/// Pearson's correlation coefficient. Corresponds to torchmetrics' `PearsonCorrCoef`.
///
/// Use this when predictions and targets should be related linearly, on any scale. If only their
/// order matters, use [`Spearman`].
///
/// Predictions and targets have shape `[n]` or `[n, outputs]`. With shape `[n, outputs]`, the
/// metric has a value for each output. The value is NaN if predictions or targets are constant.
///
/// ```
/// use trainer::metrics::{Metric, Pearson};
/// use trainer::tch::Tensor;
///
/// let mut pearson = Pearson::new();
/// pearson.update(&Tensor::from_slice(&[1.0, 2.0, 3.0]), &Tensor::from_slice(&[1.0, 3.0, 2.0]))?;
/// assert!((pearson.compute()?.double_value(&[]) - 0.5).abs() < 1e-6);
/// # Ok::<(), trainer::Error>(())
/// ```
#[doc(alias = "PearsonCorrCoef")]
#[derive(Clone, Debug)]
pub struct Pearson {
    states: States,
}

impl Pearson {
    /// Creates the metric, which is logged as `pearson`.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "no metric has a default")]
    pub fn new() -> Self {
        Pearson { states: States::new([MOMENTS_STATE]) }
    }
}

impl Metric for Pearson {
    fn name(&self) -> String {
        "pearson".to_owned()
    }

    fn update(&mut self, pred: &Tensor, target: &Tensor) -> Result<()> {
        let Some([x, y]) = columns(self, MOMENTS, pred, target)? else { return Ok(()) };
        moments::update(&mut self.states, &x, &y);
        Ok(())
    }

    fn compute(&mut self) -> Result<Tensor> {
        let moments = moments::read(&self.states)?;
        if moments.is_empty() {
            return Err(self.no_data());
        }
        let found: Vec<f64> = moments.iter().map(correlation).collect();
        Ok(if let [one] = found[..] { scalar(one) } else { Tensor::from_slice(&found) })
    }

    state_of!();
}

/// Returns the correlation, or NaN if a variance is close to 0 by the criterion of torchmetrics.
fn correlation(moments: &Moments) -> f64 {
    let Moments { count, mean, squares, mixed, min, max } = moments;
    let scale = [0, 1].map(|i| (max[i] - mean[i]).max(mean[i] - min[i]));
    let variance = [0, 1].map(|i| squares[i] / (count - 1.0) / (scale[i] * scale[i]));
    let covariance = mixed / (count - 1.0) / (scale[0] * scale[1]);
    let bound = f64::EPSILON.sqrt();
    if !variance.iter().all(|variance| variance.is_finite() && *variance >= bound) || !covariance.is_finite()
    {
        return f64::NAN;
    }
    (covariance / (variance[0] * variance[1]).sqrt()).clamp(-1.0, 1.0)
}

/// Spearman's rank correlation coefficient. Corresponds to torchmetrics' `SpearmanCorrCoef`.
///
/// Use this when only the order of the predictions matters.
///
/// Predictions and targets have shape `[n]` or `[n, outputs]`. With shape `[n, outputs]`, the
/// metric has a value for each output. All predictions and targets are kept, unless
/// [`thresholds`](Spearman::thresholds) is set.
///
/// ```
/// use trainer::metrics::{Metric, Spearman};
/// use trainer::tch::Tensor;
///
/// let mut spearman = Spearman::new();
/// spearman.update(&Tensor::from_slice(&[1.0, 2.0, 30.0]), &Tensor::from_slice(&[0.1, 0.2, 0.3]))?;
/// assert!((spearman.compute()?.double_value(&[]) - 1.0).abs() < 1e-5); // the same order
/// # Ok::<(), trainer::Error>(())
/// ```
#[doc(alias = "SpearmanCorrCoef")]
#[derive(Clone, Debug)]
pub struct Spearman {
    thresholds: Option<(usize, Range<f64>)>,
    states: States,
}

impl Spearman {
    /// Creates the metric, which is logged as `spearman`.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "no metric has a default")]
    pub fn new() -> Self {
        let states = [
            ("preds", StateReduction::Concat),
            ("targets", StateReduction::Concat),
            ("bins", StateReduction::Sum),
        ];
        Spearman { thresholds: None, states: States::new(states) }
    }

    /// Assigns predictions and targets to `n` bins of equal width in this range. The state then
    /// consists of `n × n` integers. Values outside the range are clamped to it, and NaN counts as
    /// 0. Supports only a single output.
    #[must_use]
    pub fn thresholds(mut self, n: usize, range: Range<f64>) -> Self {
        self.thresholds = Some((n, range));
        self
    }

    fn binned(&self, n: usize) -> Result<f64> {
        let bins = self.states.floats("bins")?;
        if bins.is_empty() {
            return Err(self.no_data());
        }
        let x = mid_ranks(bins.chunks(n).map(|row| row.iter().sum()));
        let y = mid_ranks((0..n).map(|column| bins.iter().skip(column).step_by(n).sum()));
        Ok(rank_correlation(bins.iter().enumerate().map(|(at, count)| (x[at / n], y[at % n], *count))))
    }
}

/// Returns, for each bin, the rank that all of its values share.
fn mid_ranks(counts: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut before = 0.0;
    counts
        .map(|count| {
            before += count;
            before - (count - 1.0) / 2.0
        })
        .collect()
}

/// Returns the correlation of two lists of ranks, with torchmetrics' epsilon. Each item consists of
/// a rank from each list, and the number of times that these two ranks occur together.
fn rank_correlation(pairs: impl Iterator<Item = (f64, f64, f64)> + Clone) -> f64 {
    let all: f64 = pairs.clone().map(|(_, _, count)| count).sum();
    let mean = (all + 1.0) / 2.0;
    let [mut xx, mut yy, mut xy] = [0.0; 3];
    for (x, y, count) in pairs {
        xx += (x - mean) * (x - mean) * count;
        yy += (y - mean) * (y - mean) * count;
        xy += (x - mean) * (y - mean) * count;
    }
    let eps = 1e-6;
    (xy / all / ((xx / all).sqrt() * (yy / all).sqrt() + eps)).clamp(-1.0, 1.0)
}

impl Metric for Spearman {
    fn name(&self) -> String {
        "spearman".to_owned()
    }

    fn check(&self) -> Result<()> {
        match &self.thresholds {
            Some((n, range)) if *n < 2 || range.is_empty() || !(range.end - range.start).is_finite() => {
                Err(self.error(&format!(
                    "`.thresholds({n}, {range:?})`: expected at least 2 bins and a range that is finite and not empty"
                )))
            }
            _ => Ok(()),
        }
    }

    fn update(&mut self, pred: &Tensor, target: &Tensor) -> Result<()> {
        self.check()?;
        if !super::is_float(pred) || !super::is_float(target) {
            return Err(self.error(&format!(
                "the prediction has dtype {:?} and the target {:?}: expected floating-point dtypes",
                pred.kind(),
                target.kind()
            )));
        }
        let Some([x, y]) = columns(self, "preds", pred, target)? else { return Ok(()) };
        let Some((n, range)) = self.thresholds.clone() else {
            self.states.update("preds", x);
            self.states.update("targets", y);
            return Ok(());
        };
        if x.size()[1] != 1 {
            return Err(self.error(&format!(
                "the prediction has {} outputs: `.thresholds(…)` supports only one",
                x.size()[1]
            )));
        }
        #[expect(clippy::cast_precision_loss, reason = "a number of steps")]
        let scale = n as f64 / (range.end - range.start);
        let [x, y] = [x, y].map(|values| {
            ((values.nan_to_num(0.0, None, None) - range.start) * scale)
                .floor()
                .clamp(0.0, f64::MAX)
                .to_kind(Kind::Int64)
                .clamp(0, int(n) - 1)
        });
        self.states.update("bins", histogram(&(x * int(n) + y), n * n));
        Ok(())
    }

    fn compute(&mut self) -> Result<Tensor> {
        if let Some((n, _)) = self.thresholds {
            return self.binned(n).map(scalar);
        }
        let preds = self.states.get("preds").ok_or_else(|| self.no_data())?;
        let outputs = usize::try_from(preds.size()[1]).unwrap_or(1);
        let both = [self.states.floats("preds")?, self.states.floats("targets")?];
        let found: Vec<f64> = (0..outputs)
            .map(|output| {
                let [x, y] = both.each_ref().map(|values| {
                    ranks(&values.iter().copied().skip(output).step_by(outputs).collect::<Vec<_>>())
                });
                rank_correlation(x.iter().zip(&y).map(|(x, y)| (*x, *y, 1.0)))
            })
            .collect();
        Ok(if let [one] = found[..] { scalar(one) } else { Tensor::from_slice(&found) })
    }

    state_of!();
}
