//! Image metrics: Dice, PSNR, SSIM. [`Jaccard`](super::Jaccard), which is computed from the
//! confusion matrix, is in its own file.

use tch::{Kind, Tensor};

use super::average::Average;
use super::labels::{Classes, Kinds, LIMITS, LIMITS_STATE, histogram, int};
use super::regression::{COUNT_STATE, add_count, add_errors, count, numel, state_of};
use super::state::{StateReduction, States};
use super::{Metric, check_pair, is_float, scalar, sum_kind};
use crate::error::Result;
use crate::log::history::Goal;

/// The Dice score of a segmentation, `2 |A ∩ B| / (|A| + |B|)`. Corresponds to torchmetrics'
/// `segmentation.DiceScore`.
///
/// Use this when you segment images and all images should count equally. If all pixels should count
/// equally, use [`Jaccard`](super::Jaccard).
///
/// Predictions are scores of shape `[n, classes, …]` or labels of shape `[n, …]`, and targets are
/// labels of shape `[n, …]`. The value is the mean score over the images. An image without any of
/// the classes has no score and is left out.
///
/// ```
/// use trainer::metrics::{Metric, Dice};
/// use trainer::tch::Tensor;
///
/// let mut dice = Dice::new(2);
/// dice.update(&Tensor::from_slice2(&[[0i64, 1, 1, 0]]), &Tensor::from_slice2(&[[0i64, 1, 0, 0]]))?;
/// let of_classes = [0.8, 2.0 / 3.0]; // 2 · 2 / (2 + 3) and 2 · 1 / (2 + 1)
/// assert!((dice.compute()?.double_value(&[]) - (of_classes[0] + of_classes[1]) / 2.0).abs() < 1e-6);
/// # Ok::<(), trainer::Error>(())
/// ```
#[doc(alias = "DiceScore")]
#[derive(Clone, Debug)]
pub struct Dice {
    classes: Classes,
    average: Average,
    has_background: bool,
    is_global: bool,
    states: States,
}

impl Dice {
    /// Creates the metric for targets from 0 to `classes - 1`. It is logged as `dice`.
    #[must_use]
    pub fn new(classes: usize) -> Self {
        let states = [("sums", StateReduction::Sum), ("images", StateReduction::Sum), LIMITS_STATE];
        Dice {
            classes: Classes::new(Kinds::Multiclass(classes)),
            average: Average::Macro,
            has_background: true,
            is_global: false,
            states: States::new(states),
        }
    }

    /// Sets how the classes are averaged. Defaults to [`Average::Macro`].
    #[must_use]
    pub fn average(mut self, average: Average) -> Self {
        self.average = average;
        self
    }

    /// Sets whether class 0, the background, is included. Defaults to `true`.
    #[must_use]
    pub fn include_background(mut self, include: bool) -> Self {
        self.has_background = include;
        self
    }

    /// Sets whether to compute one score over the pixels of all images instead of the mean of one
    /// score per image. Corresponds to torchmetrics' `aggregation_level="global"`. Defaults to
    /// `false`.
    #[must_use]
    pub fn global(mut self, global: bool) -> Self {
        self.is_global = global;
        self
    }

    /// Returns the score of each row of `sums`, which has shape `[rows, 3, classes]` (intersection,
    /// predicted, targets). The result is on the same device and has shape `[rows]`, or
    /// `[rows, classes]` for values per class. An undefined score is NaN.
    fn scores(&self, sums: &Tensor, average: Average) -> Tensor {
        let [intersection, pred, target] = [0, 1, 2].map(|row| sums.select(1, row));
        let num = intersection * 2.0;
        let denom = pred + &target;
        let kind = num.kind();
        if average == Average::Micro {
            return num.sum_dim_intlist(1i64, false, kind) / denom.sum_dim_intlist(1i64, false, kind);
        }
        let dice = num / denom;
        match average {
            Average::Macro => dice.nanmean(1i64, false, kind),
            Average::Weighted => {
                let weights = &target / target.sum_dim_intlist(1i64, true, kind);
                let is_undefined = dice.isnan().all_dim(1, false);
                (&dice * weights).nansum(1i64, false, kind).masked_fill(&is_undefined, f64::NAN)
            }
            Average::PerClass | Average::Micro => dice,
        }
    }

    fn value(&self, average: Average) -> Result<Tensor> {
        self.classes.check_limits("dice", &self.states)?;
        let sums = self.states.get("sums").ok_or_else(|| self.no_data())?.to_device(tch::Device::Cpu);
        if self.is_global {
            return Ok(self.scores(&sums.unsqueeze(0), average).squeeze_dim(0));
        }
        // Rows: micro, macro, weighted, and a value for each class.
        let images = self.states.get("images").ok_or_else(|| self.no_data())?.to_device(tch::Device::Cpu);
        let means = sums / images;
        Ok(match average {
            Average::Micro => means.get(0),
            Average::Macro => means.get(1),
            Average::Weighted => means.get(2),
            Average::PerClass => means.narrow(0, 3, means.size()[0] - 3),
        })
    }
}

impl Metric for Dice {
    fn name(&self) -> String {
        "dice".to_owned()
    }

    fn goal(&self) -> Option<Goal> {
        Some(Goal::Maximize)
    }

    fn check(&self) -> Result<()> {
        if self.classes.len() < 2 {
            return Err(
                self.error(&format!("`Dice::new({})`: expected at least 2 classes", self.classes.len()))
            );
        }
        Ok(())
    }

    fn update(&mut self, pred: &Tensor, target: &Tensor) -> Result<()> {
        self.check()?;
        if self.classes.check("dice", pred, target)? {
            return Ok(());
        }
        if target.dim() < 2 {
            return Err(self.error(&format!(
                "the target has shape {:?}: expected at least 2 dimensions, [n, …]",
                target.size()
            )));
        }
        let labels = self.classes.labels(pred, target);
        let len = int(self.classes.len());
        let images = target.size()[0];
        let image = Tensor::arange(images, (Kind::Int64, target.device())).repeat_interleave_self_int(
            numel(target) / images,
            0,
            None,
        );
        let bins = usize::try_from(images * len).unwrap_or(0);
        let outside = Tensor::full([], images * len, (Kind::Int64, target.device()));
        let sums = |labels: &Tensor, counts: &Tensor| {
            histogram(&(&image * len + labels).where_self(counts, &outside), bins).reshape([images, len])
        };
        let is_right = labels.pred.eq_tensor(&labels.target).logical_and(&labels.counts);
        let all = [
            sums(&labels.pred, &is_right),
            sums(&labels.pred, &labels.counts),
            sums(&labels.target, &labels.counts),
        ];
        let kind = sum_kind(target);
        let first = i64::from(!self.has_background);
        let all = Tensor::stack(&all, 1).narrow(2, first, len - first).to_kind(kind);
        if self.is_global {
            self.states.update("sums", all.sum_dim_intlist(0i64, false, kind));
        } else {
            let [micro, unweighted, weighted] = [Average::Micro, Average::Macro, Average::Weighted]
                .map(|average| self.scores(&all, average).unsqueeze(1));
            let scores = Tensor::cat(&[micro, unweighted, weighted, self.scores(&all, Average::PerClass)], 1);
            self.states.update("sums", scores.nansum(0i64, false, kind));
            self.states.update("images", scores.isnan().logical_not().sum_dim_intlist(0i64, false, kind));
        }
        self.states.update(LIMITS, labels.limits);
        Ok(())
    }

    fn compute(&mut self) -> Result<Tensor> {
        self.value(self.average)
    }

    fn compute_per_class(&mut self) -> Result<Option<Tensor>> {
        self.value(Average::PerClass).map(Some)
    }

    state_of!();
}

/// The peak signal-to-noise ratio in decibels. Corresponds to torchmetrics' `PeakSignalNoiseRatio`.
/// The value is infinite if predictions and targets are equal.
///
/// Use this when you reconstruct images and the errors of individual pixels matter. If the
/// structure of the images matters more, use [`Ssim`].
///
/// ```
/// use trainer::metrics::{Metric, Psnr};
/// use trainer::tch::Tensor;
///
/// let mut psnr = Psnr::new(1.0); // for values from 0 to 1
/// psnr.update(&Tensor::from_slice(&[0.5, 0.3]), &Tensor::from_slice(&[0.4, 0.2]))?;
/// assert!((psnr.compute()?.double_value(&[]) - 20.0).abs() < 1e-6);
/// # Ok::<(), trainer::Error>(())
/// ```
#[doc(alias = "PeakSignalNoiseRatio")]
#[derive(Clone, Debug)]
pub struct Psnr {
    data_range: f64,
    states: States,
}

impl Psnr {
    /// Creates the metric, which is logged as `psnr`. `data_range` is the difference between the
    /// largest and the smallest possible value, such as 1 or 255.
    #[must_use]
    pub fn new(data_range: f64) -> Self {
        Psnr { data_range, states: States::new([("squares", StateReduction::Sum), COUNT_STATE]) }
    }
}

/// Returns an error unless the data range `range` is positive and finite. The error names the type
/// of the metric, `class`.
fn check_range(metric: &impl Metric, class: &str, range: f64) -> Result<()> {
    if range > 0.0 && range.is_finite() {
        return Ok(());
    }
    Err(metric.error(&format!("`{class}::new({range:?})`: expected a finite range above 0")))
}

impl Metric for Psnr {
    fn name(&self) -> String {
        "psnr".to_owned()
    }

    fn goal(&self) -> Option<Goal> {
        Some(Goal::Maximize)
    }

    fn check(&self) -> Result<()> {
        check_range(self, "Psnr", self.data_range)
    }

    fn update(&mut self, pred: &Tensor, target: &Tensor) -> Result<()> {
        self.check()?;
        add_errors(self, pred, target, "squares", Tensor::square)
    }

    fn compute(&mut self) -> Result<Tensor> {
        let squares = self.states.floats("squares")?.first().copied().ok_or_else(|| self.no_data())?;
        let ratio = self.data_range * self.data_range / (squares / count(&self.states)?);
        Ok(scalar(10.0 * ratio.log10()))
    }

    state_of!();
}

/// The structural similarity of images. Corresponds to torchmetrics'
/// `StructuralSimilarityIndexMeasure` with a Gaussian kernel (Wang et al., *Image quality
/// assessment: from error visibility to structural similarity*, 2004).
///
/// Use this when you reconstruct images and their structure matters more than the errors of
/// individual pixels.
///
/// Predictions and targets have shape `[n, channels, height, width]`. The value is the mean over
/// the images.
///
/// ```
/// use trainer::metrics::{Metric, Ssim};
/// use trainer::prelude::*;
///
/// let images = Tensor::rand([2, 3, 32, 32], (Kind::Float, Device::Cpu));
/// let mut ssim = Ssim::new(1.0); // for values from 0 to 1
/// ssim.update(&images, &images)?;
/// assert!((ssim.compute()?.double_value(&[]) - 1.0).abs() < 1e-4);
/// # Ok::<(), trainer::Error>(())
/// ```
#[doc(alias = "StructuralSimilarityIndexMeasure")]
#[derive(Clone, Debug)]
pub struct Ssim {
    data_range: f64,
    sigma: f64,
    constants: [f64; 2],
    states: States,
}

impl Ssim {
    /// Creates the metric, which is logged as `ssim`. `data_range` is the difference between the
    /// largest and the smallest possible value, such as 1 or 255.
    #[must_use]
    pub fn new(data_range: f64) -> Self {
        let states = States::new([("similarity", StateReduction::Sum), COUNT_STATE]);
        Ssim { data_range, sigma: 1.5, constants: [0.01, 0.03], states }
    }

    /// Sets the standard deviation of the kernel in pixels. It must be above 0 and below 1000. The
    /// width of the kernel is about 7 standard deviations. Defaults to 1.5, which makes the kernel
    /// 11 pixels wide.
    #[must_use]
    pub fn sigma(mut self, sigma: f64) -> Self {
        self.sigma = sigma;
        self
    }

    /// Sets the constants k1 and k2, finite numbers of at least 0. Defaults to 0.01 and 0.03.
    #[must_use]
    pub fn constants(mut self, k1: f64, k2: f64) -> Self {
        self.constants = [k1, k2];
        self
    }

    /// The number of pixels on each side of the center of the kernel.
    #[expect(clippy::cast_possible_truncation, reason = "a small number of pixels, as in torchmetrics")]
    fn padding(&self) -> i64 {
        (3.5 * self.sigma + 0.5) as i64
    }

    /// Returns the similarity of each image.
    fn similarity(&self, pred: &Tensor, target: &Tensor) -> Tensor {
        let options = (pred.kind(), pred.device());
        let padding = self.padding();
        let channels = pred.size()[1];
        let distance = Tensor::arange_start(-padding, padding + 1, options) / self.sigma;
        let line = (distance.square() * -0.5).exp();
        let line = &line / line.sum(options.0);
        let kernel = line.outer(&line).expand([channels, 1, 2 * padding + 1, 2 * padding + 1], false);
        // Variances are computed of deviations from the mean, so that an offset of the pixels is
        // not lost in the squares.
        let means = [pred, target].map(|images| images.mean_dim([2i64, 3].as_slice(), true, options.0));
        let centered = [pred - &means[0], target - &means[1]];
        let [x, y] = &centered.map(|images| images.pad([padding; 4], "reflect", None));
        let inputs = Tensor::cat(&[x.shallow_clone(), y.shallow_clone(), x * x, y * y, x * y], 0);
        let outputs = inputs.conv2d(&kernel, None::<Tensor>, [1, 1], [0, 0], [1, 1], channels);
        let outputs = outputs.split(pred.size()[0], 0);
        let [mean_x, mean_y, square_x, square_y, mixed] = &outputs[..] else {
            unreachable!("split into five")
        };
        let [c1, c2] = self.constants.map(|constant| (constant * self.data_range).powi(2));
        let upper = (mixed - mean_x * mean_y) * 2.0 + c2;
        let variances = [square_x - mean_x.square(), square_y - mean_y.square()];
        let [variance_x, variance_y] = variances.map(|variance| variance.clamp_min(0.0));
        let lower = variance_x + variance_y + c2;
        let (mean_x, mean_y) = (mean_x + &means[0], mean_y + &means[1]);
        let mean_xx = mean_x.square();
        let mean_yy = mean_y.square();
        let mean_xy = mean_x * mean_y;
        let full = (mean_xy * 2.0 + c1) * upper / ((mean_xx + mean_yy + c1) * lower);
        full.flatten(1, -1).mean_dim(1i64, false, options.0)
    }
}

impl Metric for Ssim {
    fn name(&self) -> String {
        "ssim".to_owned()
    }

    fn goal(&self) -> Option<Goal> {
        Some(Goal::Maximize)
    }

    fn check(&self) -> Result<()> {
        check_range(self, "Ssim", self.data_range)?;
        let [k1, k2] = self.constants;
        if ![k1, k2].iter().all(|constant| *constant >= 0.0 && constant.is_finite()) {
            return Err(
                self.error(&format!("`.constants({k1:?}, {k2:?})`: expected finite numbers of at least 0"))
            );
        }
        if self.sigma > 0.0 && self.sigma < 1e3 {
            return Ok(());
        }
        Err(self.error(&format!(
            "`.sigma({:?})`: expected a number of pixels above 0 and below 1000",
            self.sigma
        )))
    }

    fn update(&mut self, pred: &Tensor, target: &Tensor) -> Result<()> {
        self.check()?;
        check_pair(self, pred, target)?;
        let shape = pred.size();
        if shape.len() != 4 || !is_float(pred) || !is_float(target) {
            return Err(self.error(&format!(
                "the prediction has shape {shape:?} and dtype {:?}, and the target has dtype {:?}: expected floating-point \
                 images of shape [n, channels, height, width]",
                pred.kind(),
                target.kind()
            )));
        }
        if pred.numel() == 0 {
            return Ok(());
        }
        if shape[2].min(shape[3]) <= self.padding() {
            return Err(self.error(&format!(
                "the images are {} by {} pixels: expected more than {} in each dimension, half the width of the \
                 kernel; a smaller `.sigma(…)` makes the kernel narrower",
                shape[2], shape[3], self.padding()
            )));
        }
        let is_double = [pred, target].iter().any(|images| images.kind() == Kind::Double);
        let kind = if is_double { Kind::Double } else { Kind::Float };
        let [x, y] = [pred, target].map(|images| images.detach().to_kind(kind));
        let similarity = self.similarity(&x, &y);
        self.states.update("similarity", similarity.sum(sum_kind(pred)));
        add_count(&mut self.states, shape[0]);
        Ok(())
    }

    fn compute(&mut self) -> Result<Tensor> {
        let sum = self.states.floats("similarity")?.first().copied().ok_or_else(|| self.no_data())?;
        Ok(scalar(sum / count(&self.states)?))
    }

    state_of!();
}
