//! MixUp.

use super::super::stages;
use super::samples::{Samples, beta, mixed, mixing_mistakes, permutation, samples_settings};
use crate::checkpoint::{SettingList, Settings};
use crate::prelude::own::*;

/// Mixes each sample of a training batch with another one (Zhang et al., *mixup: Beyond Empirical
/// Risk Minimization*, 2018): `λ x + (1 - λ) x'` with the targets `λ y + (1 - λ) y'`, where `λ` is
/// drawn from the Beta distribution `Beta(alpha, alpha)`, once per batch.
///
/// Use this when a model fits the training data but not the validation data, and its inputs can be
/// averaged. To combine images without blending them, use [`CutMix`](super::CutMix).
///
/// Batches are `(inputs, targets)`, as for [`Supervised`]; for other batch types, set
/// [`samples`](MixUp::samples). The targets become probabilities `[n, classes]`, so the loss must
/// accept probabilities in training and class indices in validation, as libtorch's
/// `cross_entropy_loss` does:
///
/// ```
/// use trainer::hooks::MixUp;
/// use trainer::prelude::*;
///
/// # fn main() -> Result<()> {
/// let vs = nn::VarStore::new(Device::Cpu);
/// let net = nn::linear(vs.root() / "fc", 4, 3, Default::default());
/// let task = Supervised::new(vs, net, |logits: &Tensor, targets: &Tensor| {
///     logits.cross_entropy_loss::<Tensor>(targets, None, Reduction::Mean, -100, 0.0)
/// });
/// let trainer = Trainer::builder(task)
///     .optimizer(AdamW::new(1e-3))
///     .hook(MixUp::new(0.2).classes(3))
///     .build()?;
/// # Ok(())
/// # }
/// ```
///
/// With class weights, libtorch divides the loss of class indices by the sum of their weights, but
/// that of probabilities by the number of rows, so training and validation losses have different
/// scales.
///
/// Floating-point targets, as in regression, are mixed as they are. The random numbers come from
/// libtorch's generator, whose state is part of checkpoints.
#[derive(Debug)]
pub struct MixUp {
    alpha: f64,
    samples: Samples,
}

impl MixUp {
    /// Draws `λ` from the Beta distribution `Beta(alpha, alpha)`, where `alpha` must be above 0.
    /// The smaller `alpha` is, the closer `λ` tends to be to 0 or 1.
    #[must_use]
    pub fn new(alpha: f64) -> Self {
        MixUp { alpha, samples: Samples::default() }
    }

    samples_settings!();
}

#[hook(in = stages::Regularization, only = train, settings, trial)]
impl MixUp {
    /// Mixes the batch.
    fn after_transfer(&mut self, cx: &mut Cx<AfterTransfer>) -> Result<()> {
        let (inputs, targets) = self.samples.find(cx)?;
        if !inputs.is_floating_point() {
            return Err(Error::msg(format!(
                "inputs of dtype {:?} cannot be mixed: convert them to `Kind::Float`",
                inputs.kind()
            )));
        }
        let lambda = beta(self.alpha)?;
        let order = permutation(inputs)?;
        *inputs = mixed(inputs, &order, lambda)?;
        *targets = mixed(targets, &order, lambda)?;
        Ok(())
    }
}

#[diagnostic::do_not_recommend]
impl Settings for MixUp {
    fn settings(&self) -> SettingList {
        let MixUp { alpha, samples: Samples { find: _, classes } } = self;
        SettingList::new().with("alpha", alpha).with_optional("classes", classes.as_ref())
    }

    fn mistakes(&self) -> Vec<String> {
        mixing_mistakes("MixUp", self.alpha, &self.samples)
    }
}
