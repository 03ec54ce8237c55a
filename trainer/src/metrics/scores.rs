//! Metrics that are quotients of counts: accuracy, precision, recall, F-beta, specificity.

use tch::Tensor;

use super::average::{Average, safe_divide, weighted_mean};
use super::counts::{self, Counts};
use super::labels::{Classes, Kinds};
use super::regression::state_of;
use super::state::States;
use super::{Metric, scalar};
use crate::error::Result;
use crate::log::history::Goal;

/// The settings and the state of a metric that is a quotient of counts.
#[derive(Clone, Debug)]
struct Score {
    classes: Classes,
    average: Average,
    states: States,
}

impl Score {
    fn new(kinds: Kinds, average: Average) -> Self {
        Score { classes: Classes::new(kinds), average, states: counts::states() }
    }

    /// Averages the values of the classes as torchmetrics does. `quotient` returns the numerator
    /// and the denominator. If `by_support` is set, a class without targets is left out of the mean
    /// even if it was predicted.
    fn averaged(
        &self,
        classes: &[Counts],
        by_support: bool,
        quotient: impl Fn(&Counts) -> (f64, f64),
    ) -> Tensor {
        // A label whose targets are all ignored has no value.
        let value = |counts: &Counts| {
            let (num, denom) = quotient(counts);
            if counts.samples() == 0.0 { f64::NAN } else { safe_divide(num, denom) }
        };
        if self.classes.kinds == Kinds::Binary {
            return scalar(value(&classes[0]));
        }
        match self.average {
            Average::Micro => scalar(value(&classes.iter().copied().sum())),
            Average::Macro | Average::Weighted => {
                scalar(weighted_mean(classes.iter().filter(|counts| counts.samples() > 0.0).map(|counts| {
                    let weight = match self.average {
                        Average::Weighted => counts.tp + counts.fn_,
                        _ if !self.classes.is_multiclass() => 1.0,
                        _ if by_support => f64::from(counts.tp + counts.fn_ > 0.0),
                        _ => f64::from(counts.tp + counts.fp + counts.fn_ > 0.0),
                    };
                    (value(counts), weight)
                })))
            }
            Average::PerClass => Tensor::from_slice(&classes.iter().map(value).collect::<Vec<_>>()),
        }
    }
}

macro_rules! score {
    (
        $(#[$docs:meta])* $type:ident, $name:literal, $class:literal, $average:ident, by support $by_support:expr,
        |$it:ident, $counts:ident| $quotient:expr
        $(, $field:ident: $field_type:ty = $value:expr, mistake $mistake:expr)?
    ) => {
        $(#[$docs])*
        #[derive(Clone, Debug)]
        pub struct $type {
            score: Score,
            $($field: $field_type,)?
        }

        impl $type {
            #[doc = concat!("Creates the metric for targets 0 and 1. Corresponds to torchmetrics' `Binary", $class, "`. Predictions are scores or labels of the same shape.")]
            #[must_use]
            pub fn binary() -> Self {
                Self::of(Kinds::Binary)
            }

            #[doc = concat!("Creates the metric for targets from 0 to `classes - 1`. Corresponds to torchmetrics' `Multiclass", $class, "`. Predictions are scores of")]
            /// shape `[n, classes, …]`, or labels of the shape of the targets.
            #[must_use]
            pub fn multiclass(classes: usize) -> Self {
                Self::of(Kinds::Multiclass(classes))
            }

            #[doc = concat!("Creates the metric for multilabel targets of 0 or 1, with shape `[n, labels, …]`. Corresponds to torchmetrics' `Multilabel", $class, "`.")]
            #[must_use]
            pub fn multilabel(labels: usize) -> Self {
                Self::of(Kinds::Multilabel(labels))
            }

            fn of(kinds: Kinds) -> Self {
                $type { score: Score::new(kinds, Average::$average), $($field: $value)? }
            }

            #[doc = concat!("Sets how the classes are averaged. Defaults to [`Average::", stringify!($average), "`].")]
            #[must_use]
            pub fn average(mut self, average: Average) -> Self {
                self.score.average = average;
                self
            }

            classes_settings!(score.classes);

            /// Counts a prediction as correct if the score of the target is among the `k` largest
            /// scores. Defaults to 1; other values are only valid for multiclass metrics.
            #[must_use]
            pub fn top_k(mut self, k: usize) -> Self {
                self.score.classes.top_k = k;
                self
            }

            fn value(&self, average: Option<Average>) -> Result<Tensor> {
                let mut score = self.score.clone();
                score.average = average.unwrap_or(score.average);
                let counts = counts::read(&score.classes, &self.name(), &score.states)?.ok_or_else(|| self.no_data())?;
                let $it = self;
                Ok(score.averaged(&counts, $by_support && score.classes.top_k > 1, |$counts| $quotient))
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
                let mistake = self.score.classes.mistake();
                $(
                    let $it = self;
                    let mistake = mistake.or_else(|| $mistake);
                )?
                mistake.map_or(Ok(()), |mistake| Err(self.error(&mistake)))
            }

            fn update(&mut self, pred: &Tensor, target: &Tensor) -> Result<()> {
                self.check()?;
                counts::update(&self.score.classes, $name, &mut self.score.states, pred, target)
            }

            fn compute(&mut self) -> Result<Tensor> {
                self.value(None)
            }

            fn compute_per_class(&mut self) -> Result<Option<Tensor>> {
                if self.score.classes.kinds == Kinds::Binary {
                    return Ok(None);
                }
                self.value(Some(Average::PerClass)).map(Some)
            }

            state_of!(score.states);
        }
    };
}

score! {
    /// The fraction of samples that are classified correctly: `tp / (tp + fn)` for multiclass
    /// targets, `(tp + tn) / (tp + fp + tn + fn)` for binary and multilabel targets. Corresponds to
    /// torchmetrics' `Accuracy(task=…)`.
    ///
    /// Use this when the classes are about equally frequent, and all errors count the same.
    ///
    /// The default average is [`Average::Micro`], as in `Accuracy(task="multiclass")`, so all
    /// samples have the same weight. torchmetrics' `MulticlassAccuracy` and `MultilabelAccuracy`
    /// default to `macro`, which is [`Average::Macro`].
    ///
    /// ```
    /// use trainer::metrics::{Accuracy, Average, Metric};
    /// use trainer::prelude::*;
    ///
    /// let scores = Tensor::from_slice2(&[[0.9, 0.1, 0.0], [0.2, 0.3, 0.5], [0.6, 0.3, 0.1]]);
    /// let mut accuracy = Accuracy::multiclass(3);
    /// accuracy.update(&scores, &Tensor::from_slice(&[0i64, 2, 1]))?;
    /// assert_eq!(accuracy.compute()?.double_value(&[]), 2.0 / 3.0);
    /// let per_class = accuracy.average(Average::PerClass).compute()?;
    /// assert_eq!(Vec::<f64>::try_from(per_class)?, [1.0, 0.0, 1.0]);
    /// # Ok::<(), trainer::Error>(())
    /// ```
    Accuracy, "accuracy", "Accuracy", Micro, by support true,
    |this, counts| if this.score.classes.is_multiclass() {
        (counts.tp, counts.tp + counts.fn_)
    } else {
        (counts.tp + counts.tn, counts.tp + counts.tn + counts.fp + counts.fn_)
    }
}

score! {
    /// The fraction of the predicted positives that are correct: `tp / (tp + fp)`. Corresponds to
    /// torchmetrics' `Precision`. A class that is never predicted has precision 0.
    ///
    /// Use this when a false alarm is worse than a miss.
    ///
    /// ```
    /// use trainer::metrics::{Metric, Precision};
    /// use trainer::tch::Tensor;
    ///
    /// let mut precision = Precision::binary();
    /// precision.update(&Tensor::from_slice(&[0.9, 0.8, 0.3]), &Tensor::from_slice(&[1i64, 0, 1]))?;
    /// assert_eq!(precision.compute()?.double_value(&[]), 0.5); // 1 of 2 predicted positives
    /// # Ok::<(), trainer::Error>(())
    /// ```
    #[doc(alias = "PPV")]
    Precision, "precision", "Precision", Macro, by support true,
    |_this, counts| (counts.tp, counts.tp + counts.fp)
}

score! {
    /// The fraction of the positives that are found: `tp / (tp + fn)`. Corresponds to torchmetrics'
    /// `Recall`. A class without targets has recall 0.
    ///
    /// Use this when a miss is worse than a false alarm.
    ///
    /// ```
    /// use trainer::metrics::{Metric, Recall};
    /// use trainer::tch::Tensor;
    ///
    /// let mut recall = Recall::binary();
    /// recall.update(&Tensor::from_slice(&[0.9, 0.2, 0.3]), &Tensor::from_slice(&[1i64, 1, 0]))?;
    /// assert_eq!(recall.compute()?.double_value(&[]), 0.5); // 1 of 2 positives
    /// # Ok::<(), trainer::Error>(())
    /// ```
    #[doc(alias = "Sensitivity")]
    Recall, "recall", "Recall", Macro, by support true,
    |_this, counts| (counts.tp, counts.tp + counts.fn_)
}

score! {
    /// The fraction of the negatives that are predicted as negative: `tn / (tn + fp)`. Corresponds
    /// to torchmetrics' `Specificity`.
    ///
    /// Use this when it matters how many negatives are recognized.
    ///
    /// ```
    /// use trainer::metrics::{Metric, Specificity};
    /// use trainer::tch::Tensor;
    ///
    /// let mut specificity = Specificity::binary();
    /// specificity.update(&Tensor::from_slice(&[0.9, 0.2, 0.3]), &Tensor::from_slice(&[0i64, 0, 1]))?;
    /// assert_eq!(specificity.compute()?.double_value(&[]), 0.5); // 1 of 2 negatives
    /// # Ok::<(), trainer::Error>(())
    /// ```
    Specificity, "specificity", "Specificity", Macro, by support false,
    |_this, counts| (counts.tn, counts.tn + counts.fp)
}

score! {
    /// The F-beta score, `(1 + β²) tp / ((1 + β²) tp + β² fn + fp)`: the weighted harmonic mean of
    /// precision and recall, in which recall counts β times as much as precision. Corresponds to
    /// torchmetrics' `FBetaScore`, or, with the default β of 1, to `F1Score`. The metric is always
    /// logged as `f1`, so [rename](Metric::named) it if you set a different β.
    ///
    /// Use this when you want a single number for precision and recall, for example because a class
    /// is rare.
    ///
    /// ```
    /// use trainer::metrics::{Metric, FBeta};
    /// use trainer::tch::Tensor;
    ///
    /// let mut f1 = FBeta::binary();
    /// f1.update(&Tensor::from_slice(&[0.9, 0.8, 0.3]), &Tensor::from_slice(&[1i64, 0, 1]))?;
    /// assert_eq!(f1.compute()?.double_value(&[]), 0.5); // precision and recall are 0.5
    /// # Ok::<(), trainer::Error>(())
    /// ```
    #[doc(alias("F1Score", "FBetaScore"))]
    FBeta, "f1", "FBetaScore", Macro, by support false,
    |this, counts| {
        let square = this.beta * this.beta;
        let num = (1.0 + square) * counts.tp;
        (num, num + square * counts.fn_ + counts.fp)
    },
    beta: f64 = 1.0, mistake {
        let beta = this.beta;
        let is_valid = beta > 0.0 && beta.is_finite();
        (!is_valid).then(|| format!("`.beta({beta})`: expected a finite number above 0"))
    }
}

impl FBeta {
    /// Sets β. Defaults to 1.
    #[must_use]
    pub fn beta(mut self, beta: f64) -> Self {
        self.beta = beta;
        self
    }
}
