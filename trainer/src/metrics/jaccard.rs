//! [`Jaccard`]: the Jaccard index.

use tch::Tensor;

use super::average::{Average, safe_divide};
use super::confusion::{Confusion, Matrix, column_sums, confusion_metric, row_sums};
use super::labels::Kinds;
use super::regression::state_of;
use super::state::States;
use super::{Metric, scalar};
use crate::error::Result;
use crate::log::history::Goal;

/// The Jaccard index, or intersection over union: `tp / (tp + fp + fn)`. Corresponds to
/// torchmetrics' `JaccardIndex`.
///
/// Use this when you segment images and all pixels should count equally. If all images should count
/// equally, use [`Dice`](super::Dice).
///
/// For images, predictions are scores of shape `[n, classes, height, width]` and targets have shape
/// `[n, height, width]`. All pixels have the same weight.
///
/// ```
/// use trainer::metrics::{Metric, Jaccard};
/// use trainer::tch::Tensor;
///
/// let mut jaccard = Jaccard::binary();
/// jaccard.update(&Tensor::from_slice(&[0.9, 0.8, 0.1]), &Tensor::from_slice(&[1i64, 0, 1]))?;
/// assert!((jaccard.compute()?.double_value(&[]) - 1.0 / 3.0).abs() < 1e-6);
/// # Ok::<(), trainer::Error>(())
/// ```
#[doc(alias("JaccardIndex", "IoU", "MeanIoU"))]
#[derive(Clone, Debug)]
pub struct Jaccard {
    confusion: Confusion,
    average: Average,
}

impl Jaccard {
    /// Creates the metric for targets 0 and 1. Corresponds to torchmetrics' `BinaryJaccardIndex`.
    #[must_use]
    pub fn binary() -> Self {
        Self::of(Kinds::Binary)
    }

    /// Creates the metric for targets from 0 to `classes - 1`. Corresponds to torchmetrics'
    /// `MulticlassJaccardIndex`.
    #[must_use]
    pub fn multiclass(classes: usize) -> Self {
        Self::of(Kinds::Multiclass(classes))
    }

    /// Creates the metric for multilabel targets of 0 or 1, with shape `[n, labels, …]`.
    /// Corresponds to torchmetrics' `MultilabelJaccardIndex`.
    #[must_use]
    pub fn multilabel(labels: usize) -> Self {
        Self::of(Kinds::Multilabel(labels))
    }

    fn of(kinds: Kinds) -> Self {
        Jaccard { confusion: Confusion::new(kinds), average: Average::Macro }
    }

    /// Sets how the classes are averaged. Defaults to [`Average::Macro`].
    #[must_use]
    pub fn average(mut self, average: Average) -> Self {
        self.average = average;
        self
    }

    fn value(&self, matrices: &[Matrix], average: Average) -> Tensor {
        let classes = &self.confusion.classes;
        // The intersection, the union and the number of targets of each class.
        let each: Vec<(f64, f64, f64)> = if classes.is_multiclass() {
            let matrix = &matrices[0];
            let sums = row_sums(matrix).into_iter().zip(column_sums(matrix)).enumerate();
            sums.map(|(class, (row, column))| {
                (matrix[class][class], row + column - matrix[class][class], row)
            })
            .collect()
        } else {
            (matrices.iter())
                .map(|matrix| {
                    let targets = matrix[1][1] + matrix[1][0];
                    (matrix[1][1], matrix[1][1] + matrix[0][1] + matrix[1][0], targets)
                })
                .collect()
        };
        // A label whose targets are all ignored has no value.
        let has_samples = |class: usize| {
            classes.is_multiclass() || matrices[class].iter().flatten().any(|count| *count > 0.0)
        };
        let scores = each.iter().enumerate().map(|(class, (num, denom, _))| {
            if has_samples(class) { safe_divide(*num, *denom) } else { f64::NAN }
        });
        let scores: Vec<f64> = scores.collect();
        if classes.kinds == Kinds::Binary {
            return scalar(scores[0]);
        }
        let ignored =
            classes.ignored.and_then(|class| usize::try_from(class).ok()).filter(|_| classes.is_multiclass());
        match average {
            Average::PerClass => Tensor::from_slice(&scores),
            Average::Micro => {
                let num: f64 = each.iter().map(|(num, ..)| num).sum();
                let unions: f64 = each.iter().map(|(_, union, _)| union).sum();
                let ignored = ignored.and_then(|class| each.get(class)).map_or(0.0, |(_, union, _)| *union);
                scalar(safe_divide(num, unions - ignored))
            }
            Average::Macro | Average::Weighted => {
                let weights = each.iter().enumerate().map(|(class, (_, union, targets))| match average {
                    Average::Weighted => *targets,
                    _ if ignored == Some(class) => 0.0,
                    _ if classes.is_multiclass() => f64::from(*union > 0.0),
                    _ => f64::from(has_samples(class)),
                });
                let weights: Vec<f64> = weights.collect();
                let known = scores.iter().zip(&weights).filter(|(score, _)| !score.is_nan());
                let sum: f64 = known.map(|(score, weight)| score * weight).sum();
                scalar(sum / weights.iter().sum::<f64>())
            }
        }
    }

    fn per_class_value(&self) -> Result<Option<Tensor>> {
        if self.confusion.classes.kinds == Kinds::Binary {
            return Ok(None);
        }
        Ok(Some(self.value(&self.matrices()?, Average::PerClass)))
    }
}

confusion_metric!(
    Jaccard,
    "jaccard",
    Some(Goal::Maximize),
    this,
    matrices,
    this.value(&matrices, this.average),
    per_class_value
);
