//! Label smoothing.

use super::super::{refused, stages};
use super::samples::{Samples, samples_settings};
use crate::checkpoint::{SettingList, Settings};
use crate::prelude::own::*;

/// Smooths the targets of training batches (Szegedy et al., *Rethinking the Inception Architecture
/// for Computer Vision*, 2016): `(1 - ε) y + ε / classes`, where `y` is 1 for the true class and 0
/// for the others.
///
/// Use this when a classifier becomes overconfident, as measured by
/// [`CalibrationError`](crate::metrics::CalibrationError).
///
/// The targets become probabilities `[n, classes]`, which the loss must accept, as for
/// [`MixUp`](super::MixUp). The two hooks can be combined. Validation targets are not smoothed.
///
/// With class weights, libtorch divides the loss of class indices by the sum of their weights, but
/// that of probabilities by the number of rows (`torch.nn.functional.cross_entropy`), so the loss
/// differs from that of PyTorch's `cross_entropy(weight=…, label_smoothing=…)`, which keeps the
/// indices. To train with that loss, pass the smoothing to `cross_entropy_loss` instead.
///
/// ```
/// use trainer::hooks::LabelSmoothing;
///
/// let smoothing = LabelSmoothing::new(0.1).classes(10);
/// ```
#[doc(alias("LabelSmoothingCrossEntropy", "label_smoothing_factor"))]
#[derive(Debug)]
pub struct LabelSmoothing {
    epsilon: f64,
    samples: Samples,
}

impl LabelSmoothing {
    /// Smooths by `epsilon`, at least 0 and below 1.
    #[must_use]
    pub fn new(epsilon: f64) -> Self {
        LabelSmoothing { epsilon, samples: Samples::default() }
    }

    samples_settings!();
}

#[hook(in = stages::Regularization, only = train, settings, trial)]
impl LabelSmoothing {
    /// Smooths the targets.
    fn after_transfer(&mut self, cx: &mut Cx<AfterTransfer>) -> Result<()> {
        let (_, targets) = self.samples.find(cx)?;
        let [_, classes, ..] = targets.size()[..] else {
            return Err(Error::msg(format!(
                "the targets have dtype {:?} and shape {:?}: expected integer class indices `[n]`, or probabilities \
                 `[n, classes]`",
                targets.kind(),
                targets.size()
            )));
        };
        *targets = targets.f_mul_scalar(1.0 - self.epsilon)? + self.epsilon / classes as f64;
        Ok(())
    }
}

#[diagnostic::do_not_recommend]
impl Settings for LabelSmoothing {
    fn settings(&self) -> SettingList {
        let LabelSmoothing { epsilon, samples: Samples { find: _, classes } } = self;
        SettingList::new().with("epsilon", epsilon).with_optional("classes", classes.as_ref())
    }

    fn mistakes(&self) -> Vec<String> {
        let epsilon = self.epsilon;
        let message = format!("`LabelSmoothing::new({epsilon:?})`: expected at least 0.0 and below 1.0");
        refused([(!(0.0..1.0).contains(&epsilon), message)])
            .into_iter()
            .chain(self.samples.mistake())
            .collect()
    }
}
