//! CutMix.

use super::super::stages;
use super::samples::{Samples, beta, mixed, mixing_mistakes, permutation, samples_settings};
use crate::checkpoint::{SettingList, Settings};
use crate::prelude::own::*;

/// Replaces a rectangle of each image of a training batch with the same rectangle of another image
/// (Yun et al., *CutMix: Regularization Strategy to Train Strong Classifiers with Localizable
/// Features*, 2019). The targets are mixed in proportion to the area: `λ y + (1 - λ) y'`.
///
/// Use this when a model fits the training images but not the validation images. If the inputs are
/// not images, use [`MixUp`](super::MixUp).
///
/// The rectangle is the same for all images of a batch. Its center is uniformly distributed, and
/// its sides are those of the image times `√(1 - λ)`, where `λ` is drawn from the Beta distribution
/// `Beta(alpha, alpha)`. The rectangle is clipped to the image, and `λ` in the targets is the
/// fraction of the image that the rectangle leaves unchanged.
///
/// The inputs must be images `[n, …, height, width]`. Targets and losses must meet the same
/// requirements as for [`MixUp`](super::MixUp).
///
/// ```
/// use trainer::hooks::CutMix;
///
/// let cut_mix = CutMix::new(1.0).classes(10);
/// ```
#[derive(Debug)]
pub struct CutMix {
    alpha: f64,
    samples: Samples,
}

impl CutMix {
    /// Draws `λ` from the Beta distribution `Beta(alpha, alpha)`, where `alpha` must be above 0. If
    /// `alpha` is 1, `λ` is uniformly distributed.
    #[must_use]
    pub fn new(alpha: f64) -> Self {
        CutMix { alpha, samples: Samples::default() }
    }

    samples_settings!();
}

/// Draws the range that a rectangle covers in one dimension of an image: its first index and its
/// length.
fn range(size: i64, fraction: f64) -> Result<(i64, i64)> {
    let center = Tensor::f_randint(size, [1], (Kind::Int64, Device::Cpu))?.int64_value(&[0]);
    let half = (size as f64 * fraction) as i64 / 2;
    let first = (center - half).max(0);
    Ok((first, (center + half).min(size) - first))
}

#[hook(in = stages::Regularization, only = train, settings, trial)]
impl CutMix {
    /// Mixes the batch.
    fn after_transfer(&mut self, cx: &mut Cx<AfterTransfer>) -> Result<()> {
        let (inputs, targets) = self.samples.find(cx)?;
        let size = inputs.size();
        let [_, .., height, width] = size[..] else {
            return Err(Error::msg(format!(
                "the inputs have shape {size:?}: expected images `[n, …, height, width]`"
            )));
        };
        if height * width == 0 {
            return Ok(());
        }
        let fraction = (1.0 - beta(self.alpha)?).sqrt();
        let order = permutation(inputs)?;
        let (top, rows) = range(height, fraction)?;
        let (left, columns) = range(width, fraction)?;
        let cut = |images: &Tensor| images.f_narrow(-2, top, rows)?.f_narrow(-1, left, columns);
        let mixture = inputs.copy(); // the loader may own the batch
        cut(&mixture)?.f_copy_(&cut(inputs)?.f_index_select(0, &order)?)?;
        *inputs = mixture;
        *targets = mixed(targets, &order, 1.0 - (rows * columns) as f64 / (height * width) as f64)?;
        Ok(())
    }
}

#[diagnostic::do_not_recommend]
impl Settings for CutMix {
    fn settings(&self) -> SettingList {
        let CutMix { alpha, samples: Samples { find: _, classes } } = self;
        SettingList::new().with("alpha", alpha).with_optional("classes", classes.as_ref())
    }

    fn mistakes(&self) -> Vec<String> {
        mixing_mistakes("CutMix", self.alpha, &self.samples)
    }
}
