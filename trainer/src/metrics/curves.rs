//! Areas under curves: AUROC and average precision.

use tch::{Kind, Tensor};

use super::average::Average;
use super::labels::{
    Classes, Kinds, LIMITS, LIMITS_STATE, histogram, int, is_any_nan, is_any_outside, is_used, rows,
};
use super::ranking::Ranking;
use super::regression::state_of;
use super::state::{StateReduction, States};
use super::{Metric, NoValue, precise, scalar};
use crate::error::{Error, Result};
use crate::log::history::Goal;

/// The name of the state that holds all scores, for a metric without thresholds.
const SCORES: &str = "scores";
/// The name of the state that holds all targets, for a metric without thresholds.
const TARGETS: &str = "targets";
/// The name of the state of a metric with thresholds: histograms of the negatives and positives of
/// each class. The bin of a sample is the number of thresholds that its score reaches.
const BINS: &str = "bins";

/// The settings and the state of a curve.
#[derive(Clone, Debug)]
struct Curve {
    classes: Classes,
    average: Average,
    thresholds: Option<usize>,
    states: States,
}

/// The data of one class: its ranking, and the numbers of its positives and negatives.
struct OfClass {
    ranking: Ranking,
    positives: f64,
    negatives: f64,
    /// Whether all targets are 0 (in a multilabel metric: all targets of this label). Only used
    /// without thresholds.
    has_only_zeros: bool,
}

impl OfClass {
    /// Whether there are samples to rank above others.
    fn has_both(&self) -> bool {
        self.positives > 0.0 && self.negatives > 0.0
    }
}

/// Returns the error of a metric that has nothing to rank.
#[cold]
fn one_class(name: String) -> Error {
    const WHY: &str = "no class has both positive and negative targets: check the targets, and whether the data is sorted by \
                       class";
    Error::new(NoValue { name, why: WHY, of_pass: WHY })
}

impl Curve {
    fn new(kinds: Kinds) -> Self {
        let states = [
            (SCORES, StateReduction::Concat),
            (TARGETS, StateReduction::Concat),
            (BINS, StateReduction::Sum),
            LIMITS_STATE,
        ];
        Curve {
            classes: Classes::new(kinds),
            average: Average::Macro,
            thresholds: None,
            states: States::new(states),
        }
    }

    fn mistake(&self) -> Option<String> {
        if self.average == Average::Micro && self.classes.is_multiclass() {
            return Some(
                "`.average(Average::Micro)`: expected another average for a multiclass metric".to_owned(),
            );
        }
        if let Some(n @ (0 | 1)) = self.thresholds {
            return Some(format!("`.thresholds({n})`: expected at least 2"));
        }
        self.classes.mistake()
    }

    fn update(&mut self, name: &str, pred: &Tensor, target: &Tensor) -> Result<()> {
        if self.classes.check_scores(name, pred, target)? {
            return Ok(());
        }
        let (scores, target) = self.scores(&precise(pred), &target.to_kind(Kind::Int64));
        let is_used = is_used(&target, self.classes.ignored);
        let used = target.masked_fill(&is_used.logical_not(), 0);
        let zero = Tensor::zeros([], (Kind::Int64, used.device()));
        self.states.update(
            LIMITS,
            Tensor::stack(
                &[
                    -used.min(),
                    used.max(),
                    zero.shallow_clone(),
                    zero,
                    is_any_nan(&scores),
                    is_any_outside(&scores),
                ],
                0,
            ),
        );
        match self.thresholds {
            None => {
                self.states.update(SCORES, scores);
                self.states.update(TARGETS, target);
            }
            Some(thresholds) => {
                let bins = self.classes.for_each_case(|classes| {
                    self.bins(thresholds, &probabilities(classes, &scores), &target, &is_used)
                });
                self.states.update(BINS, bins);
            }
        }
        Ok(())
    }

    /// Returns scores and targets, with the shapes `[n]` and `[n]` (binary), `[n, classes]`
    /// and `[n]` (multiclass), or `[n, labels]` and `[n, labels]` (multilabel).
    fn scores(&self, pred: &Tensor, target: &Tensor) -> (Tensor, Tensor) {
        let len = self.classes.len();
        let (pred, target) = match self.classes.kinds {
            Kinds::Binary => (pred.flatten(0, -1), target.flatten(0, -1)),
            Kinds::Multiclass(_) => (rows(pred, len), target.flatten(0, -1)),
            Kinds::Multilabel(_) => (rows(pred, len), rows(target, len)),
        };
        // As in torchmetrics, ignored elements do not affect whether scores are treated as logits.
        let pred = match (self.classes.ignored, self.classes.kinds) {
            (None, _) | (_, Kinds::Multilabel(_)) => pred,
            (Some(ignored), Kinds::Binary) => pred.masked_fill(&target.eq(ignored), 0.5),
            (Some(ignored), Kinds::Multiclass(_)) => pred.masked_fill(&target.eq(ignored).unsqueeze(1), 0.5),
        };
        (pred, target)
    }

    /// Counts the scores of a batch by class, target and bin, on their device. Returns integers of
    /// shape `[classes, 2, thresholds + 1]`.
    fn bins(&self, thresholds: usize, scores: &Tensor, target: &Tensor, is_used: &Tensor) -> Tensor {
        let len = int(self.classes.len());
        let width = int(thresholds) + 1;
        let at = Tensor::linspace(0.0, 1.0, int(thresholds), (Kind::Float, scores.device()))
            .to_kind(scores.kind());
        let bin = scores.contiguous().bucketize(&at, false, true).reshape([-1, len]);
        let class = Tensor::arange(len, (Kind::Int64, scores.device()));
        let (is_positive, is_used) = if self.classes.is_multiclass() {
            let is_used = is_used.unsqueeze(1).expand([-1, len], false);
            (target.unsqueeze(1).eq_tensor(&class), is_used)
        } else {
            (target.eq(1).reshape([-1, len]), is_used.reshape([-1, len]))
        };
        let all = self.classes.len() * 2 * (thresholds + 1);
        let outside = Tensor::full([], int(all), (Kind::Int64, scores.device()));
        let index = (class * 2 + is_positive.to_kind(Kind::Int64)) * width + bin;
        histogram(&index.where_self(&is_used, &outside), all).reshape([len, 2, width])
    }

    /// Reads the data of each class, or, with [`Average::Micro`], of all labels together. Returns
    /// `None` if there is no data.
    fn read(&self, name: &str, average: Average) -> Result<Option<Vec<OfClass>>> {
        self.classes.check_limits(name, &self.states)?;
        let is_micro = average == Average::Micro;
        let mut found = match self.thresholds {
            Some(_) => self.binned(is_micro)?,
            None => self.exact(is_micro)?,
        };
        if found.iter().any(|class| class.positives + class.negatives > 0.0) {
            let has_only_zeros =
                found.iter().enumerate().all(|(nth, class)| nth == 0 || class.positives == 0.0);
            if self.classes.is_multiclass() {
                found.iter_mut().for_each(|class| class.has_only_zeros = has_only_zeros);
            }
            return Ok(Some(found));
        }
        Ok(None)
    }

    #[expect(clippy::cast_precision_loss, reason = "a count of samples")]
    fn binned(&self, is_micro: bool) -> Result<Vec<OfClass>> {
        let bins = self.states.ints(BINS)?;
        let bins = self.classes.decided(&bins, &self.states)?;
        let Some(thresholds) = self.thresholds else { return Ok(Vec::new()) };
        let width = thresholds + 1;
        // For each class: the negatives in each bin, then the positives.
        let mut each: Vec<Vec<i64>> = bins.chunks(2 * width).map(<[i64]>::to_vec).collect();
        if is_micro && let Some(first) = each.first().cloned() {
            each = vec![
                each[1..].iter().fold(first, |sum, row| sum.iter().zip(row).map(|(a, b)| a + b).collect()),
            ];
        }
        let classes = each.iter().map(|counts| {
            let (negatives, positives) = counts.split_at(width);
            OfClass {
                ranking: Ranking::at_thresholds(above(positives), above(negatives)),
                positives: positives.iter().sum::<i64>() as f64,
                negatives: negatives.iter().sum::<i64>() as f64,
                has_only_zeros: false,
            }
        });
        Ok(classes.collect())
    }

    fn exact(&self, is_micro: bool) -> Result<Vec<OfClass>> {
        let Some(scores) = self.states.get(SCORES) else { return Ok(Vec::new()) };
        let classes =
            Classes { logits: Some(self.classes.are_logits(&self.states)?), ..self.classes.clone() };
        let scores = probabilities(&classes, &scores).to_kind(Kind::Double).flatten(0, -1);
        let scores = Vec::<f64>::try_from(scores)?;
        let targets = self.states.ints(TARGETS)?;
        let len = self.classes.len();
        let is_multiclass = self.classes.is_multiclass();
        let classes = if is_micro { vec![None] } else { (0..len).map(Some).collect() };
        let classes = classes.into_iter().map(|class| {
            let samples =
                scores.iter().enumerate().filter(|(nth, _)| class.is_none_or(|class| nth % len == class));
            let samples: Vec<(f64, bool)> = samples
                .filter_map(|(nth, score)| {
                    let target = targets[if is_multiclass { nth / len } else { nth }];
                    let positive = if is_multiclass { int(nth % len) } else { 1 };
                    (Some(target) != self.classes.ignored).then_some((*score, target == positive))
                })
                .collect();
            #[expect(clippy::cast_precision_loss, reason = "a count of samples")]
            let positives = samples.iter().filter(|(_, is_positive)| *is_positive).count() as f64;
            #[expect(clippy::cast_precision_loss, reason = "a count of samples")]
            let negatives = samples.len() as f64 - positives;
            OfClass { ranking: Ranking::new(samples), positives, negatives, has_only_zeros: positives == 0.0 }
        });
        Ok(classes.collect())
    }

    /// Averages the values of the classes; a class whose value is NaN is left out of a mean.
    fn averaged(&self, classes: &[OfClass], average: Average, value: impl Fn(&OfClass) -> f64) -> Tensor {
        // A label whose targets are all ignored has no value.
        let value = |class: &OfClass| {
            if class.positives + class.negatives == 0.0 { f64::NAN } else { value(class) }
        };
        let values: Vec<(f64, f64)> = classes.iter().map(|class| (value(class), class.positives)).collect();
        if self.classes.kinds == Kinds::Binary || average == Average::Micro {
            return scalar(values[0].0);
        }
        let known = values.iter().filter(|(value, _)| !value.is_nan());
        match average {
            Average::PerClass => {
                Tensor::from_slice(&values.iter().map(|(value, _)| *value).collect::<Vec<_>>())
            }
            Average::Weighted => scalar(super::average::weighted_mean(known.copied())),
            Average::Macro | Average::Micro => {
                let (sum, count) =
                    known.fold((0.0, 0.0), |(sum, count), (value, _)| (sum + value, count + 1.0));
                scalar(sum / count)
            }
        }
    }
}

/// Converts scores to probabilities.
fn probabilities(classes: &Classes, scores: &Tensor) -> Tensor {
    if classes.is_multiclass() { classes.class_probabilities(scores) } else { classes.probabilities(scores) }
}

/// Returns, for each threshold from the largest down, how many samples have a score at or above it.
#[expect(clippy::cast_precision_loss, reason = "a count of samples")]
fn above(counts: &[i64]) -> Vec<f64> {
    let mut sum = 0;
    counts[1..]
        .iter()
        .rev()
        .map(|count| {
            sum += count;
            sum as f64
        })
        .collect()
}

macro_rules! curve {
    ($(#[$docs:meta])* $type:ident, $name:literal, $class:literal, |$this:ident, $it:ident| $value:expr) => {
        $(#[$docs])*
        #[derive(Clone, Debug)]
        pub struct $type {
            curve: Curve,
        }

        impl $type {
            #[doc = concat!("Creates the metric for targets 0 and 1. Corresponds to torchmetrics' `Binary", $class, "`. Predictions are scores of the same shape.")]
            #[must_use]
            pub fn binary() -> Self {
                $type { curve: Curve::new(Kinds::Binary) }
            }

            #[doc = concat!("Creates the metric for targets from 0 to `classes - 1`, each class against all others. Corresponds to torchmetrics' `Multiclass", $class, "`.")]
            /// Predictions are scores of shape `[n, classes, …]`.
            #[must_use]
            pub fn multiclass(classes: usize) -> Self {
                $type { curve: Curve::new(Kinds::Multiclass(classes)) }
            }

            #[doc = concat!("Creates the metric for multilabel targets of 0 or 1, with shape `[n, labels, …]`. Corresponds to torchmetrics' `Multilabel", $class, "`.")]
            #[must_use]
            pub fn multilabel(labels: usize) -> Self {
                $type { curve: Curve::new(Kinds::Multilabel(labels)) }
            }

            /// Sets how the classes are averaged. Defaults to [`Average::Macro`], the mean over the
            /// classes whose value is defined. Multiclass metrics do not support
            /// [`Average::Micro`].
            #[must_use]
            pub fn average(mut self, average: Average) -> Self {
                self.curve.average = average;
                self
            }

            /// Makes the metric compute the curve at `n` thresholds, evenly spaced from 0 to 1. `n`
            /// must be at least 2. The state then has `2 (n + 1)` integers for each class. By
            /// default, all scores are kept and the value is exact.
            #[must_use]
            pub fn thresholds(mut self, n: usize) -> Self {
                self.curve.thresholds = Some(n);
                self
            }

            ignore_setting!(curve.classes);
            logits_setting!(curve.classes);

            fn value(&self, average: Average) -> Result<Tensor> {
                let classes = self.curve.read($name, average)?.ok_or_else(|| self.no_data())?;
                if !classes.iter().any(OfClass::has_both) {
                    return Err(one_class(self.name()));
                }
                let $this = &self.curve;
                Ok(self.curve.averaged(&classes, average, |$it| $value))
            }
        }

        impl Metric for $type {
            fn name(&self) -> String {
                $name.to_owned()
            }

            fn goal(&self) -> Option<Goal> {
                Some(Goal::Maximize)
            }

            fn check(&self) -> Result<()> {
                self.curve.mistake().map_or(Ok(()), |mistake| Err(self.error(&mistake)))
            }

            fn update(&mut self, pred: &Tensor, target: &Tensor) -> Result<()> {
                self.check()?;
                self.curve.update($name, pred, target)
            }

            fn compute(&mut self) -> Result<Tensor> {
                self.value(self.curve.average)
            }

            fn compute_per_class(&mut self) -> Result<Option<Tensor>> {
                if self.curve.classes.kinds == Kinds::Binary {
                    return Ok(None);
                }
                self.value(Average::PerClass).map(Some)
            }

            state_of!(curve.states);
        }
    };
}

curve! {
    /// The area under the ROC curve. Corresponds to torchmetrics' `AUROC`. A class without
    /// positives or without negatives has an area of 0. If all classes are such, as with targets of
    /// one class, the metric has no value: [`compute`](Metric::compute) returns an error, and a
    /// trainer logs nothing and warns.
    ///
    /// Use this when the scores rank samples, or when the threshold is chosen later. If positives
    /// are rare, use [`AveragePrecision`].
    ///
    /// Scores are probabilities or [logits](Auroc::logits).
    ///
    /// ```
    /// use trainer::metrics::{Metric, Auroc};
    /// use trainer::tch::Tensor;
    ///
    /// let mut auroc = Auroc::binary();
    /// auroc.update(&Tensor::from_slice(&[0.1, 0.4, 0.35, 0.8]), &Tensor::from_slice(&[0i64, 0, 1, 1]))?;
    /// assert_eq!(auroc.compute()?.double_value(&[]), 0.75); // 3 of 4 pairs are in order
    /// # Ok::<(), trainer::Error>(())
    /// ```
    #[doc(alias("roc_auc_score", "ROC"))]
    Auroc, "auroc", "AUROC",
    |this, class| class.ranking.auroc([class.positives, class.negatives], this.thresholds.is_none())
}

curve! {
    /// The average precision, which summarizes the precision-recall curve. Corresponds to
    /// torchmetrics' `AveragePrecision`. In a binary or multilabel metric, and with
    /// [`thresholds`](AveragePrecision::thresholds), a class without positives has the value 0. In
    /// a multiclass metric without thresholds, such a class has no value and is left out of the
    /// mean. If no class has both positives and negatives, the metric has no value, like [`Auroc`].
    ///
    /// Use this when positives are rare, and either the scores rank samples or the threshold is
    /// chosen later.
    ///
    /// ```
    /// use trainer::metrics::{Metric, AveragePrecision};
    /// use trainer::tch::Tensor;
    ///
    /// let mut precision = AveragePrecision::binary();
    /// precision.update(&Tensor::from_slice(&[0.1, 0.4, 0.35, 0.8]), &Tensor::from_slice(&[0i64, 0, 1, 1]))?;
    /// assert!((precision.compute()?.double_value(&[]) - 5.0 / 6.0).abs() < 1e-6);
    /// # Ok::<(), trainer::Error>(())
    /// ```
    #[doc(alias("average_precision_score", "AUPRC"))]
    AveragePrecision, "average_precision", "AveragePrecision",
    |this, class| class.ranking.average_precision(|tp| match this.thresholds {
        Some(_) if class.positives == 0.0 => 0.0,
        None if class.has_only_zeros => 1.0,
        _ => tp / class.positives,
    })
}
