//! Metrics computed from the confusion matrix: the matrix itself, Cohen's kappa, and the Matthews
//! correlation coefficient.

use tch::{Kind, Tensor};

use super::average::safe_divide;
use super::counts;
use super::labels::{Classes, Kinds, LIMITS, LIMITS_STATE, histogram, int};
use super::matrix_image;
use super::regression::state_of;
use super::state::{StateReduction, States};
use super::{Metric, scalar};
use crate::error::Result;
use crate::log::history::Goal;

/// The name of the state of a multiclass metric, which counts how often each pair of target and
/// prediction occurred. Binary and multilabel metrics use the state of `counts` instead.
const PAIRS: &str = "pairs";

/// A confusion matrix for any kind of targets, with its settings.
#[derive(Clone, Debug)]
pub(super) struct Confusion {
    pub(super) classes: Classes,
    pub(super) states: States,
}

/// A confusion matrix, with a row for each target and a column for each prediction.
pub(super) type Matrix = Vec<Vec<f64>>;

impl Confusion {
    pub(super) fn new(kinds: Kinds) -> Self {
        let states = match kinds {
            Kinds::Multiclass(_) => States::new([(PAIRS, StateReduction::Sum), LIMITS_STATE]),
            Kinds::Binary | Kinds::Multilabel(_) => counts::states(),
        };
        Confusion { classes: Classes::new(kinds), states }
    }

    pub(super) fn update(&mut self, name: &str, pred: &Tensor, target: &Tensor) -> Result<()> {
        let Confusion { classes, states } = self;
        if !classes.is_multiclass() {
            return counts::update(classes, name, states, pred, target);
        }
        if classes.check(name, pred, target)? {
            return Ok(());
        }
        let len = classes.len();
        if let Some(pairs) = states.counts_mut(PAIRS, len * len)
            && let Some(done) =
                classes.on_cpu(name, pred, target, |pred, target| pairs[target * len + pred] += 1)
        {
            return done;
        }
        let labels = classes.labels(pred, target);
        let outside = Tensor::full([], int(len * len), (Kind::Int64, labels.pred.device()));
        let indices = (labels.target * int(len) + labels.pred).where_self(&labels.counts, &outside);
        states.update(PAIRS, histogram(&indices, len * len));
        states.update(LIMITS, labels.limits);
        Ok(())
    }

    /// Reads the matrices from the state: a single matrix, or a 2 × 2 matrix for each label.
    /// Returns `None` if there is no data.
    pub(super) fn read(&self, name: &str) -> Result<Option<Vec<Matrix>>> {
        if !self.classes.is_multiclass() {
            let counts = counts::read(&self.classes, name, &self.states)?;
            return Ok(counts.map(|counts| {
                counts.iter().map(|class| vec![vec![class.tn, class.fp], vec![class.fn_, class.tp]]).collect()
            }));
        }
        self.classes.check_limits(name, &self.states)?;
        let pairs = self.states.floats(PAIRS)?;
        let matrix: Matrix = pairs.chunks(self.classes.len()).map(<[f64]>::to_vec).collect();
        let has_samples = matrix.iter().flatten().any(|count| *count > 0.0);
        Ok(has_samples.then(|| vec![matrix]))
    }
}

pub(super) fn row_sums(matrix: &Matrix) -> Vec<f64> {
    matrix.iter().map(|row| row.iter().sum()).collect()
}

pub(super) fn column_sums(matrix: &Matrix) -> Vec<f64> {
    (0..matrix.len()).map(|column| matrix.iter().map(|row| row[column]).sum()).collect()
}

macro_rules! confusion_metric {
    ($type:ident, $name:literal, $goal:expr, $this:ident, $matrices:ident, $value:expr $(, $per_class:ident $(, $image:ident)?)?) => {
        impl $type {
            classes_settings!(confusion.classes);

            fn matrices(&self) -> Result<Vec<Matrix>> {
                self.confusion.read($name)?.ok_or_else(|| self.no_data())
            }
        }

        impl Metric for $type {
            fn name(&self) -> String {
                $name.to_owned()
            }

            fn goal(&self) -> Option<Goal> {
                $goal
            }

            fn check(&self) -> Result<()> {
                self.confusion.classes.mistake().map_or(Ok(()), |mistake| Err(self.error(&mistake)))
            }

            fn update(&mut self, pred: &Tensor, target: &Tensor) -> Result<()> {
                self.confusion.update($name, pred, target)
            }

            fn compute(&mut self) -> Result<Tensor> {
                let $matrices = self.matrices()?;
                let $this = &*self;
                Ok($value)
            }

            $(fn compute_per_class(&mut self) -> Result<Option<Tensor>> {
                self.$per_class()
            }

            $(fn image(&mut self) -> Result<Option<Tensor>> {
                self.$image()
            })?)?

            state_of!(confusion.states);
        }
    };
}

/// The normalization of a [`ConfusionMatrix`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Normalize {
    /// No normalization: the elements are counts.
    No,
    /// Divides by the number of targets of the class, so that rows add up to 1.
    Target,
    /// Divides by the number of predictions of the class, so that columns add up to 1.
    Pred,
    /// Divides by the number of samples.
    All,
}

/// The number of times that each class was predicted for each target class. Corresponds to
/// torchmetrics' `ConfusionMatrix`.
///
/// Use this when you want to see which classes are confused.
///
/// The value has shape `[classes, classes]`, with a row for each target and a column for each
/// prediction. The shape is `[2, 2]` for binary targets, and `[labels, 2, 2]` for multilabel
/// targets.
///
/// If a hook receives records, a trainer logs an image of the counts as `valid/confusion_matrix`,
/// except for multilabel targets. If [`per_class`](Metric::per_class) is set, a trainer logs each
/// element, such as `valid/confusion_matrix/0/1`. In the image, the rows are the targets and the
/// columns are the predictions. The greater a cell's share of its row, the darker the cell.
/// [`MetricHook::value`](super::MetricHook::value) returns the matrix.
///
/// ```
/// use trainer::metrics::{Metric, ConfusionMatrix};
/// use trainer::tch::Tensor;
///
/// let mut matrix = ConfusionMatrix::multiclass(3);
/// matrix.update(&Tensor::from_slice(&[0i64, 2, 1]), &Tensor::from_slice(&[0i64, 2, 2]))?;
/// let matrix = matrix.compute()?;
/// assert_eq!(matrix.double_value(&[2, 1]), 1.0); // class 2 was once predicted as class 1
/// # Ok::<(), trainer::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct ConfusionMatrix {
    confusion: Confusion,
    normalize: Normalize,
}

impl ConfusionMatrix {
    /// Creates the metric for targets 0 and 1. Corresponds to torchmetrics'
    /// `BinaryConfusionMatrix`.
    #[must_use]
    pub fn binary() -> Self {
        ConfusionMatrix { confusion: Confusion::new(Kinds::Binary), normalize: Normalize::No }
    }

    /// Creates the metric for targets from 0 to `classes - 1`. Corresponds to torchmetrics'
    /// `MulticlassConfusionMatrix`.
    #[must_use]
    pub fn multiclass(classes: usize) -> Self {
        ConfusionMatrix { confusion: Confusion::new(Kinds::Multiclass(classes)), normalize: Normalize::No }
    }

    /// Creates the metric for multilabel targets of 0 or 1, with shape `[n, labels, …]`.
    /// Corresponds to torchmetrics' `MultilabelConfusionMatrix`.
    #[must_use]
    pub fn multilabel(labels: usize) -> Self {
        ConfusionMatrix { confusion: Confusion::new(Kinds::Multilabel(labels)), normalize: Normalize::No }
    }

    /// Sets the normalization. Defaults to [`Normalize::No`]. Division by 0 results in 0.
    #[must_use]
    pub fn normalize(mut self, by: Normalize) -> Self {
        self.normalize = by;
        self
    }

    fn value(&self, matrices: &[Matrix]) -> Tensor {
        let len = int(matrices[0].len());
        let mut elements = Vec::new();
        for matrix in matrices {
            let rows = row_sums(matrix);
            let columns = column_sums(matrix);
            let all: f64 = rows.iter().sum();
            for (row, row_sum) in matrix.iter().zip(rows) {
                elements.extend(row.iter().zip(&columns).map(|(element, column_sum)| match self.normalize {
                    Normalize::No => *element,
                    Normalize::Target => safe_divide(*element, row_sum),
                    Normalize::Pred => safe_divide(*element, *column_sum),
                    Normalize::All => safe_divide(*element, all),
                }));
            }
        }
        let value = Tensor::from_slice(&elements);
        match self.confusion.classes.kinds {
            Kinds::Multilabel(labels) => value.reshape([int(labels), 2, 2]),
            Kinds::Binary | Kinds::Multiclass(_) => value.reshape([len, len]),
        }
    }

    fn per_class_value(&self) -> Result<Option<Tensor>> {
        self.matrices().map(|matrices| Some(self.value(&matrices)))
    }

    fn picture(&self) -> Result<Option<Tensor>> {
        let matrices = self.matrices()?;
        Ok(if let [matrix] = &matrices[..] { Some(matrix_image::draw(matrix)) } else { None })
    }
}

confusion_metric!(
    ConfusionMatrix,
    "confusion_matrix",
    None,
    this,
    matrices,
    this.value(&matrices),
    per_class_value,
    picture
);

/// How [`CohenKappa`] weights a confusion of two classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KappaWeights {
    /// All confusions have the same weight.
    None,
    /// The weight is the absolute difference between the indices of the classes.
    Linear,
    /// The weight is the square of the difference between the indices of the classes.
    Quadratic,
}

/// Cohen's kappa: the agreement of predictions and targets beyond chance. Corresponds to
/// torchmetrics' `CohenKappa`. The value is NaN if all predictions and targets belong to the same
/// class.
///
/// Use this when agreement by chance should not count, as when comparing two annotators.
///
/// ```
/// use trainer::metrics::{Metric, CohenKappa};
/// use trainer::tch::Tensor;
///
/// let mut kappa = CohenKappa::binary();
/// kappa.update(&Tensor::from_slice(&[1i64, 0, 1, 1]), &Tensor::from_slice(&[1i64, 0, 0, 1]))?;
/// assert!((kappa.compute()?.double_value(&[]) - 0.5).abs() < 1e-6);
/// # Ok::<(), trainer::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct CohenKappa {
    confusion: Confusion,
    weights: KappaWeights,
}

impl CohenKappa {
    /// Creates the metric for targets 0 and 1. Corresponds to torchmetrics' `BinaryCohenKappa`.
    #[must_use]
    pub fn binary() -> Self {
        CohenKappa { confusion: Confusion::new(Kinds::Binary), weights: KappaWeights::None }
    }

    /// Creates the metric for targets from 0 to `classes - 1`. Corresponds to torchmetrics'
    /// `MulticlassCohenKappa`.
    #[must_use]
    pub fn multiclass(classes: usize) -> Self {
        CohenKappa { confusion: Confusion::new(Kinds::Multiclass(classes)), weights: KappaWeights::None }
    }

    /// Sets how confusions are weighted. Defaults to [`KappaWeights::None`].
    #[must_use]
    pub fn weights(mut self, weights: KappaWeights) -> Self {
        self.weights = weights;
        self
    }

    fn kappa(&self, matrix: &Matrix) -> f64 {
        let rows = row_sums(matrix);
        let columns = column_sums(matrix);
        let all: f64 = rows.iter().sum();
        let mut observed = 0.0;
        let mut expected = 0.0;
        for (target, row) in matrix.iter().enumerate() {
            for (pred, count) in row.iter().enumerate() {
                #[expect(clippy::cast_precision_loss, reason = "a number of classes")]
                let distance = target.abs_diff(pred) as f64;
                let weight = match self.weights {
                    KappaWeights::None => f64::from(target != pred),
                    KappaWeights::Linear => distance,
                    KappaWeights::Quadratic => distance * distance,
                };
                observed += weight * count;
                expected += weight * rows[target] * columns[pred] / all;
            }
        }
        1.0 - observed / expected
    }
}

confusion_metric!(
    CohenKappa,
    "cohen_kappa",
    Some(Goal::Maximize),
    this,
    matrices,
    scalar(this.kappa(&matrices[0]))
);

/// The Matthews correlation coefficient. Corresponds to torchmetrics' `MatthewsCorrCoef`, including
/// its results for matrices in which a row or a column is all zeros.
///
/// Use this when you want one number for a whole confusion matrix, even if the classes are
/// imbalanced.
///
/// ```
/// use trainer::metrics::{Metric, Matthews};
/// use trainer::tch::Tensor;
///
/// let mut matthews = Matthews::binary();
/// matthews.update(&Tensor::from_slice(&[1i64, 0, 1, 1]), &Tensor::from_slice(&[1i64, 0, 0, 1]))?;
/// assert!((matthews.compute()?.double_value(&[]) - 1.0 / 3.0_f64.sqrt()).abs() < 1e-6);
/// # Ok::<(), trainer::Error>(())
/// ```
#[doc(alias = "MatthewsCorrCoef")]
#[derive(Clone, Debug)]
pub struct Matthews {
    confusion: Confusion,
}

impl Matthews {
    /// Creates the metric for targets 0 and 1. Corresponds to torchmetrics'
    /// `BinaryMatthewsCorrCoef`.
    #[must_use]
    pub fn binary() -> Self {
        Matthews { confusion: Confusion::new(Kinds::Binary) }
    }

    /// Creates the metric for targets from 0 to `classes - 1`. Corresponds to torchmetrics'
    /// `MulticlassMatthewsCorrCoef`.
    #[must_use]
    pub fn multiclass(classes: usize) -> Self {
        Matthews { confusion: Confusion::new(Kinds::Multiclass(classes)) }
    }

    /// Creates the metric for multilabel targets of 0 or 1, with shape `[n, labels, …]`.
    /// Corresponds to torchmetrics' `MultilabelMatthewsCorrCoef`, which sums the matrices of all
    /// labels.
    #[must_use]
    pub fn multilabel(labels: usize) -> Self {
        Matthews { confusion: Confusion::new(Kinds::Multilabel(labels)) }
    }
}

confusion_metric!(Matthews, "matthews", Some(Goal::Maximize), _this, matrices, scalar(matthews(&matrices)));

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn matthews(matrices: &[Matrix]) -> f64 {
    let len = matrices[0].len();
    let mut matrix = vec![vec![0.0; len]; len];
    for (row, column) in (0..len).flat_map(|row| (0..len).map(move |column| (row, column))) {
        matrix[row][column] = matrices.iter().map(|matrix| matrix[row][column]).sum();
    }
    let binary = (len == 2).then(|| (matrix[1][1], matrix[0][1], matrix[0][0], matrix[1][0]));
    match binary {
        Some((tp, fp, tn, fn_)) if tp + tn != 0.0 && fp + fn_ == 0.0 => return 1.0,
        Some((tp, fp, tn, fn_)) if tp + tn == 0.0 && fp + fn_ != 0.0 => return -1.0,
        _ => {}
    }
    let targets = row_sums(&matrix);
    let preds = column_sums(&matrix);
    let right: f64 = (0..len).map(|class| matrix[class][class]).sum();
    let all: f64 = targets.iter().sum();
    let denom = (all * all - dot(&preds, &preds)) * (all * all - dot(&targets, &targets));
    if denom != 0.0 {
        return (right * all - dot(&targets, &preds)) / denom.sqrt();
    }
    // The limits that torchmetrics uses, with the epsilon of single precision.
    let Some((tp, fp, tn, fn_)) = binary else { return 0.0 };
    let eps = f64::from(f32::EPSILON);
    let num = if fn_ == 0.0 && tn == 0.0 {
        eps.sqrt() * (tp - fp)
    } else if fp == 0.0 && tn == 0.0 {
        eps.sqrt() * (tp - fn_)
    } else if tp == 0.0 && fn_ == 0.0 {
        eps.sqrt() * (tn - fp)
    } else if tp == 0.0 && fp == 0.0 {
        eps.sqrt() * (tn - fn_)
    } else {
        return 0.0;
    };
    num / ((tp + fp + eps) * (tp + fn_ + eps) * (tn + fp + eps) * (tn + fn_ + eps)).sqrt()
}

pub(super) use confusion_metric;
