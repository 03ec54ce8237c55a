//! Metrics that are exact over batches of any size, are saved in checkpoints, and take one line to
//! add to a trainer.
//!
//! ```
//! use trainer::metrics::Accuracy;
//! use trainer::prelude::*;
//!
//! # tch::manual_seed(1);
//! let inputs = Tensor::randn([64, 4], (Kind::Float, Device::Cpu));
//! let labels = inputs.select(1, 0).gt(0.0).to_kind(Kind::Int64);
//! let mut train = InMemory::new((inputs.copy(), labels.copy()))?.batch_size(16).shuffle(1);
//! let mut valid = InMemory::new((inputs, labels))?.batch_size(48);
//!
//! let vs = nn::VarStore::new(Device::Cpu);
//! let net = nn::linear(vs.root() / "fc", 4, 2, Default::default());
//! let task = Supervised::new(vs, net, |logits, labels| logits.cross_entropy_for_logits(labels));
//! let mut trainer = Trainer::builder(task)
//!     .optimizer(AdamW::new(1e-2))
//!     .epochs(2)
//!     .hook(Accuracy::multiclass(2)) // logs `valid/accuracy` and `test/accuracy`
//!     .build()?;
//! let summary = trainer.fit(&mut train, Some(&mut valid))?;
//! assert!(summary.metrics["valid/accuracy"] > 0.2);
//! # Ok::<(), trainer::Error>(())
//! ```
//!
//! | | |
//! |---|---|
//! | classification | [`Accuracy`], [`Precision`], [`Recall`], [`FBeta`], [`Specificity`], [`ConfusionMatrix`], [`CohenKappa`], [`Matthews`], [`Auroc`], [`AveragePrecision`], [`CalibrationError`] |
//! | regression | [`MeanSquaredError`], [`MeanAbsoluteError`], [`R2Score`], [`ExplainedVariance`], [`Pearson`], [`Spearman`] |
//! | text | [`Perplexity`], [`Bleu`], [`WordErrorRate`], [`CharErrorRate`] |
//! | images | [`Dice`], [`Jaccard`], [`Psnr`], [`Ssim`] |
//! | wrappers | [`Running`], [`BestSoFar`], [`PerGroup`] |
//!
//! Definitions and edge cases are those of torchmetrics 1.9; each metric names its counterpart. By
//! default, every metric except [`Accuracy`] averages over classes like its counterpart for a
//! single task, such as `MulticlassPrecision`. Nothing is read from the device before
//! [`compute`](Metric::compute).
//!
//! Predictions and targets may be integers, `Bool`, or floating-point numbers of half, single or
//! double precision. A metric that does not support a dtype returns an error that names the dtype.
//! Differences and sums are computed in double precision (in single precision on MPS, which has no
//! double precision), and probabilities at least in single precision, so the value does not depend
//! on the dtype.
//!
//! [`MetricHook`] has the settings of a metric in a trainer: its name, its phases, and whether to
//! log values per class. The [guide](crate::guide::metrics) shows how to use these settings and how
//! to write a metric.

/// Defines the setters of a metric that stores its settings as a `Classes` in `self.$classes`.
macro_rules! classes_settings {
    ($($classes:ident).+) => {
        /// Sets the probability above which a binary or multilabel metric predicts a label.
        /// Defaults to 0.5.
        #[must_use]
        pub fn threshold(mut self, threshold: f64) -> Self {
            self.$($classes).+.threshold = threshold;
            self
        }

        ignore_setting!($($classes).+);
        logits_setting!($($classes).+);
    };
}

macro_rules! logits_setting {
    ($($classes:ident).+) => {
        /// Sets whether scores are logits. If the metric needs probabilities, it converts logits to
        /// probabilities. By default, scores are treated as logits if any score of the pass is
        /// outside the range from 0 to 1. (In torchmetrics, the scores of each batch decide.) Set
        /// this if all logits of a small data set could be within that range.
        #[must_use]
        pub fn logits(mut self, logits: bool) -> Self {
            self.$($classes).+.logits = Some(logits);
            self
        }
    };
}

macro_rules! ignore_setting {
    ($($classes:ident).+) => {
        /// Ignores elements with this target, such as -100.
        #[must_use]
        pub fn ignore_index(mut self, target: i64) -> Self {
            self.$($classes).+.ignored = Some(target);
            self
        }
    };
}

mod average;
mod calibration;
mod confusion;
mod correlation;
mod counts;
mod curves;
mod hook;
mod images;
mod jaccard;
mod labels;
mod matrix_image;
mod moments;
mod ranking;
mod regression;
mod scores;
mod state;
mod text;
mod tokens;
mod wrappers;

use tch::{Device, Kind, Tensor};

use crate::PhaseSet;
use crate::error::{Error, Result};
use crate::log::history::Goal;

pub use average::Average;
pub use calibration::{CalibrationError, CalibrationNorm};
pub use confusion::{CohenKappa, ConfusionMatrix, KappaWeights, Matthews, Normalize};
pub use correlation::{Pearson, Spearman};
pub use curves::{Auroc, AveragePrecision};
pub use hook::{AsMetric, MetricHook};
pub use images::{Dice, Psnr, Ssim};
pub use jaccard::Jaccard;
pub use regression::{ExplainedVariance, MeanAbsoluteError, MeanSquaredError, R2Score};
pub use scores::{Accuracy, FBeta, Precision, Recall, Specificity};
pub use state::{StateReduction, States};
pub use text::{Bleu, CharErrorRate, Perplexity, WordErrorRate};
pub use wrappers::{BestSoFar, PerGroup, Running};

/// A value computed from all predictions and targets of a pass over data.
///
/// A metric can be used by itself, or added to a trainer with `.hook(…)`, which converts it to a
/// [`MetricHook`].
///
/// ```
/// use trainer::metrics::{Metric, StateReduction, States};
/// use trainer::prelude::*;
///
/// /// The largest absolute error.
/// #[derive(Clone)]
/// struct MaxError(States);
///
/// impl MaxError {
///     fn new() -> Self {
///         MaxError(States::new([("max", StateReduction::Max)]))
///     }
/// }
///
/// impl Metric for MaxError {
///     fn name(&self) -> String {
///         "max_error".to_owned()
///     }
///     fn update(&mut self, pred: &Tensor, target: &Tensor) -> Result<()> {
///         // In `Uint8`, the difference would wrap around.
///         let error = pred.to_kind(Kind::Double) - target.to_kind(Kind::Double);
///         self.0.update("max", error.abs().max());
///         Ok(())
///     }
///     fn compute(&mut self) -> Result<Tensor> {
///         self.0.get("max").ok_or_else(|| self.no_data())
///     }
///     fn states(&self) -> &States {
///         &self.0
///     }
///     fn states_mut(&mut self) -> &mut States {
///         &mut self.0
///     }
/// }
///
/// let (mut one, mut two) = (MaxError::new(), MaxError::new());
/// one.update(&Tensor::from_slice(&[1.0, 2.0]), &Tensor::from_slice(&[1.5, 2.0]))?;
/// two.update(&Tensor::from_slice(&[3.0]), &Tensor::from_slice(&[1.0]))?;
/// one.merge(&two)?;
/// assert_eq!(one.compute()?.double_value(&[]), 2.0);
/// # Ok::<(), trainer::Error>(())
/// ```
pub trait Metric: Send + 'static {
    /// Returns the name under which a trainer logs the metric, such as `accuracy`.
    fn name(&self) -> String;

    /// Returns whether smaller or larger values are better. A trainer refuses a hook that compares
    /// values of the metric the other way round, and tools use it to find the best value. Defaults
    /// to `None`, which means that it is not known.
    fn goal(&self) -> Option<Goal> {
        None
    }

    /// Checks the settings. [`build`](crate::TrainerBuilder::build) calls this.
    ///
    /// # Errors
    ///
    /// Returns an error if the settings are invalid.
    fn check(&self) -> Result<()> {
        Ok(())
    }

    /// Adds the predictions and targets of a batch. An empty batch adds nothing. Implementations
    /// should not read values from the tensors, because that would synchronize with the device.
    ///
    /// # Errors
    ///
    /// Returns an error if
    ///
    /// - the settings are invalid;
    /// - the shapes, dtypes or devices of the tensors do not match;
    /// - the metric [needs groups](Metric::needs_groups).
    ///
    /// For data on the CPU, this method may report a target that is not a valid class. For data on
    /// other devices, only [`compute`](Metric::compute) does.
    fn update(&mut self, pred: &Tensor, target: &Tensor) -> Result<()>;

    /// Whether the metric needs the group of each sample. Defaults to `false`.
    fn needs_groups(&self) -> bool {
        false
    }

    /// Adds a batch whose samples belong to groups. [`PerGroup`] implements this method, and
    /// [`BestSoFar`] and [`Running`] pass the batch to the metric that they wrap. The default
    /// implementation returns an error.
    ///
    /// # Errors
    ///
    /// Returns an error if
    ///
    /// - the metric takes no groups;
    /// - the settings are invalid;
    /// - the shapes or dtypes of the tensors do not match.
    fn update_groups(&mut self, _pred: &Tensor, _target: &Tensor, _groups: &Tensor) -> Result<()> {
        Err(self.error("it takes no groups: wrap it in `PerGroup`"))
    }

    /// Computes the value over all data since the last reset: a scalar, or a tensor with a value
    /// for each class, output or group. Takes `&mut self` for wrappers that remember values, such
    /// as [`BestSoFar`].
    ///
    /// # Errors
    ///
    /// Returns an error if there was no data or too little of it, or if the data was invalid, for
    /// example because a target was not a valid class.
    fn compute(&mut self) -> Result<Tensor>;

    /// Computes a value for each class or output, in addition to the scalar. Defaults to `None`,
    /// which means that the metric has no such values. If [`per_class`](Metric::per_class) is set,
    /// a trainer also calls this method without data when an entry point starts, and returns an
    /// error if the result is `None`.
    ///
    /// # Errors
    ///
    /// Returns an error for the same reasons as [`compute`](Metric::compute).
    fn compute_per_class(&mut self) -> Result<Option<Tensor>> {
        Ok(None)
    }

    /// Draws the data as an image, which a trainer logs under the name of the metric. The image
    /// must have a shape that [`log_image`](crate::Cx::log_image) accepts. Defaults to `None`.
    ///
    /// # Errors
    ///
    /// Returns an error for the same reasons as [`compute`](Metric::compute).
    fn image(&mut self) -> Result<Option<Tensor>> {
        Ok(None)
    }

    /// Returns the metric's state.
    fn states(&self) -> &States;

    /// Mutable access to the state.
    fn states_mut(&mut self) -> &mut States;

    /// Merges in the data of `other`. The two metrics must have the same settings, and must have
    /// been updated with different parts of the data.
    ///
    /// # Errors
    ///
    /// Returns an error if the two metrics declare different states, or if the shapes of their
    /// states differ. [`Running`] always returns an error.
    fn merge(&mut self, other: &Self) -> Result<()>
    where
        Self: Sized,
    {
        self.states_mut().merge(other.states())
    }

    /// Removes all data, except from states that are [kept](States::keep).
    fn reset(&mut self) {
        self.states_mut().reset();
    }

    /// Converts the metric to a hook that logs it under this name.
    fn named(self, name: impl Into<String>) -> MetricHook<Self>
    where
        Self: Sized,
    {
        MetricHook::new(self).named(name)
    }

    /// Converts the metric to a hook that also logs a value for each class if `per_class` is set.
    fn per_class(self, per_class: bool) -> MetricHook<Self>
    where
        Self: Sized,
    {
        MetricHook::new(self).per_class(per_class)
    }

    /// Converts the metric to a hook that logs values per class under these names; see
    /// [`MetricHook::class_names`].
    fn class_names<S: Into<String>>(self, names: impl IntoIterator<Item = S>) -> MetricHook<Self>
    where
        Self: Sized,
    {
        MetricHook::new(self).class_names(names)
    }

    /// Converts the metric to a hook that measures it in these phases.
    fn only(self, phases: impl Into<PhaseSet>) -> MetricHook<Self>
    where
        Self: Sized,
    {
        MetricHook::new(self).only(phases)
    }

    /// Converts the metric to a hook that gets its predictions and targets from `inputs`; see
    /// [`MetricHook::inputs`].
    fn inputs<B: 'static, P: 'static>(
        self,
        inputs: impl Fn(&B, &P) -> Option<(Tensor, Tensor)> + Send + 'static,
    ) -> MetricHook<Self>
    where
        Self: Sized,
    {
        MetricHook::new(self).inputs(inputs)
    }

    /// Converts the metric to a hook that gets the group of each sample from the batch; see
    /// [`MetricHook::groups`].
    fn groups<B: 'static>(self, groups: impl Fn(&B) -> Tensor + Send + 'static) -> MetricHook<Self>
    where
        Self: Sized,
    {
        MetricHook::new(self).groups(groups)
    }

    /// Returns an error that names the metric.
    fn error(&self, text: &str) -> Error {
        Error::usage(format!("metric `{}`: {text}", self.name()))
    }

    /// Returns the error for a metric without data. A trainer then logs no value, and a warning
    /// says so.
    fn no_data(&self) -> Error {
        Error::new(NoValue {
            name: self.name(),
            why: "no data was added since the last reset, or all of it was ignored; call `update` first, or check which targets are \
                  ignored",
            of_pass: "all targets of the pass are ignored: check which targets are ignored",
        })
    }
}

/// The error of a metric that has no value.
#[derive(Debug, thiserror::Error)]
#[error("metric `{name}`: there is nothing to compute, because {why}")]
struct NoValue {
    name: String,
    /// The reason for code that calls `update`.
    why: &'static str,
    /// The reason for a trainer that has run a pass.
    of_pass: &'static str,
}

/// The dtype of a metric's sums: double precision if the device supports it.
fn sum_kind(tensor: &Tensor) -> Kind {
    if tensor.device() == Device::Mps { Kind::Float } else { Kind::Double }
}

/// Converts a number to a scalar tensor.
fn scalar(value: f64) -> Tensor {
    Tensor::from(value)
}

/// Whether the dtype of a tensor is a floating-point type that metrics support.
fn is_float(tensor: &Tensor) -> bool {
    matches!(tensor.kind(), Kind::Half | Kind::BFloat16 | Kind::Float | Kind::Double)
}

/// Whether the dtype of a tensor is an integer type or `Bool`.
fn is_int(tensor: &Tensor) -> bool {
    matches!(tensor.kind(), Kind::Uint8 | Kind::Int8 | Kind::Int16 | Kind::Int | Kind::Int64 | Kind::Bool)
}

/// Converts a tensor to the dtype of sums, so that differences of integers cannot wrap around and
/// half-precision values are not rounded.
fn exact(tensor: &Tensor) -> Tensor {
    tensor.detach().to_kind(sum_kind(tensor))
}

/// Converts half-precision scores to single precision, for functions such as softmax.
fn precise(scores: &Tensor) -> Tensor {
    match scores.kind() {
        Kind::Half | Kind::BFloat16 => scores.detach().to_kind(Kind::Float),
        _ => scores.detach(),
    }
}

/// Checks that a prediction and a target have supported dtypes and the same shape.
fn check_pair(metric: &impl Metric, pred: &Tensor, target: &Tensor) -> Result<()> {
    check_dtypes(&metric.name(), pred, target)?;
    if pred.size() == target.size() {
        return Ok(());
    }
    Err(metric.error(&format!(
        "the prediction has shape {:?} and the target {:?}: expected the same shape",
        pred.size(),
        target.size()
    )))
}

/// Checks that the dtypes of a prediction and a target are among those that metrics support.
fn check_dtypes(name: &str, pred: &Tensor, target: &Tensor) -> Result<()> {
    if [pred, target].into_iter().all(|tensor| is_float(tensor) || is_int(tensor)) {
        return Ok(());
    }
    Err(labels::error(
        name,
        &format!(
            "the prediction has dtype {:?} and the target {:?}: expected integers, `Bool`, or numbers of half, single or double \
             precision",
            pred.kind(),
            target.kind()
        ),
    ))
}
