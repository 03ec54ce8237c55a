//! Hooks for the custom lifecycle of another crate. A program that trains a [`gan::Gan`] adds them
//! with `use gan_hooks as _;`.

use gan::{AfterGeneratorStep, DiscriminatorStep, Fakes};
use trainer::checkpoint::{Saved, State};
use trainer::prelude::*;

/// The discriminator is too strong when it recognizes more than this fraction of the fakes. With
/// 0.8, it would be paused so often that the generator would learn only a few of the digits.
const TOO_STRONG: f64 = 0.9;

/// Skips the discriminator's training while it is too strong: the generator learns little from a
/// discriminator that is never wrong.
#[hook]
pub fn pause_discriminator(cx: &mut Cx<DiscriminatorStep>, next: Next<DiscriminatorStep>) -> Result<Done> {
    let pauses = cx.hook::<Watch>()?.fake_accuracy > TOO_STRONG;
    cx.log("discriminator_pauses", f64::from(pauses));
    if pauses { Ok(next.skip()) } else { next.run(cx) }
}

/// Logs the fraction of the fakes that the discriminator recognizes.
#[hook]
pub fn log_fake_accuracy(cx: &Cx<AfterGeneratorStep>) -> Result<()> {
    let accuracy = cx.hook::<Watch>()?.fake_accuracy;
    cx.log("fake_accuracy", accuracy);
    Ok(())
}

/// Observes the generated samples of all processes together, because all processes must make the
/// same decision. This type cannot wrap `discriminator_step` itself: a hook value is borrowed while
/// one of its hooks runs, and `after_pred` fires within that operation.
#[derive(Debug, Default)]
pub struct Watch {
    fake_accuracy: f64,
    samples: Option<Tensor>,
}

#[hook(auto, state, only = train)]
impl Watch {
    /// Keeps the newest fakes, and the fraction of them that the discriminator recognizes.
    fn after_pred(&mut self, cx: &Cx<AfterPred>) -> Result<()> {
        let Fakes { samples, logits } = cx.pred()?;
        let accuracy = logits.lt(0.0).to_kind(Kind::Float).mean(Kind::Float);
        self.samples = Some(samples.detach());
        cx.world().average([("fake_accuracy", &accuracy)])?;
        self.fake_accuracy = accuracy.double_value(&[]);
        Ok(())
    }

    /// Logs the mean distance between the newest fakes: 0 if the generator always makes the same
    /// sample.
    fn after_train_epoch(&mut self, cx: &Cx<AfterTrainEpoch>) -> Result<()> {
        if let Some(own) = &self.samples {
            let samples = cx.world().gather_rows("samples", own)?;
            cx.log("diversity", gan::mean_distance(&samples, &samples));
        }
        Ok(())
    }
}

/// Saves both fields of [`Watch`] in checkpoints, because they determine whether the discriminator
/// trains and what is logged.
impl State for Watch {
    fn save(&self) -> Result<Saved> {
        let mut saved = Saved::new();
        saved.set("fake_accuracy", &self.fake_accuracy)?;
        if let Some(samples) = &self.samples {
            saved.set_tensor("samples", samples)?;
        }
        Ok(saved)
    }

    fn load(&mut self, saved: &Saved) -> Result<()> {
        self.fake_accuracy = saved.get("fake_accuracy")?;
        self.samples = saved.tensors().next().map(|(_, samples)| samples.copy());
        Ok(())
    }
}
