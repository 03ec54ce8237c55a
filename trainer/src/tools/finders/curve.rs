//! The result of a learning-rate range test.

use super::plot;
use crate::error::{Error, Result};

/// One step of a learning-rate range test.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct LrPoint {
    /// The learning rate of the step; with several parameter groups, the highest.
    pub lr: f64,
    /// The loss before the step.
    pub loss: f64,
    /// The bias-corrected exponential moving average of the losses so far.
    pub smoothed: f64,
}

/// The loss as a function of the learning rate, as returned by
/// [`Trainer::find_lr`](crate::Trainer::find_lr).
///
/// ```
/// use trainer::finders::LearningRateFinder;
/// use trainer::prelude::*;
///
/// # let inputs = Tensor::randn([64, 4], (Kind::Float, Device::Cpu));
/// # let labels = inputs.select(1, 0).gt(0.0).to_kind(Kind::Int64);
/// # let vs = nn::VarStore::new(Device::Cpu);
/// # let net = nn::linear(vs.root() / "fc", 4, 2, Default::default());
/// # let task = Supervised::new(vs, net, |logits, labels| logits.cross_entropy_for_logits(labels));
/// # let mut train = InMemory::new((inputs, labels))?.batch_size(16);
/// # let mut trainer = Trainer::builder(task).optimizer(Sgd::new(0.1)).build()?;
/// let curve = trainer.find_lr(&mut train, &LearningRateFinder::new())?;
/// for point in curve.points() {
///     println!("{:e} {:.4}", point.lr, point.smoothed);
/// }
/// assert!(curve.to_svg().starts_with("<svg"));
/// # Ok::<(), trainer::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct LrCurve {
    points: Vec<LrPoint>,
    /// The planned number of steps.
    steps: usize,
    diverged: bool,
}

/// The number of points at the end that suggestions ignore, as in fastai.
const SKIPPED_AT_END: usize = 5;
/// The minimum number of points that a suggestion is computed from.
const NEEDED: usize = 5;

impl LrCurve {
    /// Creates the curve of a range test. `steps` is the planned number of steps.
    ///
    /// # Errors
    ///
    /// Returns an error if the curve has too few points for a suggestion.
    pub(super) fn new(points: Vec<LrPoint>, steps: u32, diverged: bool) -> Result<Self> {
        let curve = LrCurve { points, steps: steps as usize, diverged };
        if curve.considered().len() < NEEDED {
            let count = curve.points.len();
            let last = curve.points.last().map_or(f64::NAN, |point| point.lr);
            return Err(Error::usage(format!(
                "`find_lr`: the loss diverged after step {count}, at a learning rate of {last:.1e}, which is too soon for a \
                 suggestion: begin with a lower rate, `.from(…)`, take more steps, `.steps(…)`, or allow a higher loss, `.stop_at(…)`"
            )));
        }
        Ok(curve)
    }

    /// The points of all steps, from the first to the last.
    #[must_use]
    pub fn points(&self) -> &[LrPoint] {
        &self.points
    }

    /// Whether the test ended because the loss grew too much, or was not finite.
    #[must_use]
    pub fn has_diverged(&self) -> bool {
        self.diverged
    }

    /// Returns the suggested learning rate, which is that of [`valley`](LrCurve::valley), or `None`
    /// if the smoothed loss never falls.
    #[must_use]
    pub fn suggestion(&self) -> Option<f64> {
        self.valley()
    }

    /// Returns the rate in the middle of the longest decreasing subsequence of the smoothed losses,
    /// like fastai's `valley`. Returns `None` if the smoothed loss never falls.
    ///
    /// As in fastai, this method and [`steepest`](LrCurve::steepest) leave out the first tenth of
    /// the planned steps and the last 5 points.
    #[must_use]
    pub fn valley(&self) -> Option<f64> {
        let points = self.considered();
        // The length of the longest decreasing subsequence that ends at each point.
        let mut lengths = vec![1_usize; points.len()];
        let mut end = 0;
        for nth in 1..points.len() {
            for before in 0..nth {
                if points[nth].smoothed < points[before].smoothed {
                    lengths[nth] = lengths[nth].max(lengths[before] + 1);
                }
            }
            if lengths[nth] > lengths[end] {
                end = nth;
            }
        }
        if lengths[end] == 1 {
            return None;
        }
        // As in fastai, which treats the subsequence as if it had no gaps.
        let start = end.saturating_sub(lengths[end]);
        let third = (end - start) as f64 / 3.0;
        points.get(start + third as usize + (third / 2.0) as usize).map(|point| point.lr)
    }

    /// Returns the rate at which the smoothed loss falls most steeply over the logarithm of the
    /// rate, like fastai's `steep`. Returns `None` if the smoothed loss never falls.
    #[must_use]
    pub fn steepest(&self) -> Option<f64> {
        let slope =
            |pair: &[LrPoint]| (pair[1].smoothed - pair[0].smoothed) / (pair[1].lr.ln() - pair[0].lr.ln());
        let slopes = self.considered().windows(2).map(|pair| (slope(pair), pair[0].lr));
        let (slope, lr) = slopes.min_by(|one, other| one.0.total_cmp(&other.0))?;
        (slope < 0.0).then_some(lr)
    }

    /// Plots the smoothed loss against the learning rate, with the losses of individual steps and
    /// the suggestion. Returns the text of an SVG file.
    #[must_use]
    pub fn to_svg(&self) -> String {
        plot::svg(&self.points, self.suggestion())
    }

    /// The points that suggestions are computed from.
    fn considered(&self) -> &[LrPoint] {
        let end = self.points.len().saturating_sub(SKIPPED_AT_END);
        self.points.get(self.steps / 10..end).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::{LrCurve, LrPoint};

    fn curve(losses: impl Iterator<Item = f64>) -> LrCurve {
        let points: Vec<_> = losses
            .enumerate()
            .map(|(nth, loss)| LrPoint { lr: 1e-7 * 10_f64.powf(nth as f64 / 10.0), loss, smoothed: loss })
            .collect();
        let steps = u32::try_from(points.len()).unwrap();
        LrCurve::new(points, steps, false).unwrap()
    }

    #[test]
    fn suggestions_match_fastai() {
        // Flat up to point 30, down to point 70, then up. fastai's functions return the points 44
        // and 50: in the list without its first 10 points, the subsequence ends at 60 and has 41
        // points, so that it starts at 19, and the index is 19 + 13 + 6.
        let loss = |nth: usize| match nth {
            0..=30 => 2.0,
            31..=70 => 1.5 + 0.5 * (std::f64::consts::PI * (nth - 30) as f64 / 40.0).cos(),
            _ => 1.0 + (nth - 70) as f64 * 0.1,
        };
        let curve = curve((0..100).map(loss));
        let at = |nth: usize| curve.points()[nth].lr;
        assert_eq!(curve.valley(), Some(at(10 + 19 + 13 + 6)));
        let steepest = curve.steepest().unwrap();
        assert!([at(49), at(50)].contains(&steepest), "{steepest}");
    }

    #[test]
    fn no_learning_rate_is_suggested_if_the_loss_never_falls() {
        for curve in [curve((0..30).map(|_| 1.0)), curve((0..30).map(f64::from))] {
            assert_eq!((curve.valley(), curve.steepest()), (None, None));
            assert!(!curve.to_svg().contains("NaN"));
        }
    }
}
