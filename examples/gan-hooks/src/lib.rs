//! Hooks on the lifecycle of another crate: whoever trains a [`gan::Gan`] has them by `use gan_hooks as _;`.

use gan::{AfterGeneratorStep, DiscriminatorStep, Fakes};
use trainer::checkpoint::{Saved, State};
use trainer::prelude::*;

/// The discriminator is too strong when it recognizes more than this share of the fakes. At 0.8 it waits for
/// so long that the generator comes to make only a few of the digits.
const TOO_STRONG: f64 = 0.9;

/// Trains the discriminator only while it is not too strong: from one that is never wrong the generator learns
/// little.
#[hook(around = gan::at::discriminator_step)]
pub fn wait_for_generator(cx: &mut Cx<DiscriminatorStep>, next: Next<DiscriminatorStep>) -> Result<()> {
    let waits = cx.hook::<Watch>()?.fake_accuracy > TOO_STRONG;
    cx.log("discriminator_waits", f64::from(waits));
    if waits { Ok(()) } else { next.run(cx) }
}

/// Logs the share of the fakes that the discriminator recognizes.
#[hook(gan::at::after_generator_step)]
pub fn log_fake_accuracy(cx: &mut Cx<AfterGeneratorStep>) -> Result<()> {
    let accuracy = cx.hook::<Watch>()?.fake_accuracy;
    cx.log("fake_accuracy", accuracy);
    Ok(())
}

/// Watches the fakes. A type of its own, because its value is in use for as long as a hook of its runs, and `pred`
/// runs within `discriminator_step`.
#[derive(Debug, Default)]
pub struct Watch {
    fake_accuracy: f64,
    samples: Option<Tensor>,
}

#[hook(auto, state, only = train)]
impl Watch {
    /// Keeps the newest fakes, and the share of them that the discriminator recognizes.
    fn after_pred(&mut self, cx: &mut Cx<AfterPred>) -> Result<()> {
        let Fakes { samples, logits } = cx.pred()?;
        self.fake_accuracy = logits.lt(0.0).to_kind(Kind::Float).mean(Kind::Float).double_value(&[]);
        self.samples = Some(samples.detach());
        Ok(())
    }

    /// Logs how far the newest fakes are from one another: a generator that makes one sample only has 0.
    fn after_train_epoch(&mut self, cx: &mut Cx<AfterTrainEpoch>) {
        if let Some(samples) = &self.samples {
            cx.log("diversity", gan::mean_distance(samples, samples));
        }
    }
}

/// What it has seen decides whether the discriminator waits: a run that is resumed has to know it.
impl State for Watch {
    fn save(&self) -> Result<Saved> {
        let mut saved = Saved::new();
        saved.value("fake_accuracy", &self.fake_accuracy)?;
        if let Some(samples) = &self.samples {
            saved.tensor("samples", samples)?;
        }
        Ok(saved)
    }

    fn load(&mut self, saved: &Saved) -> Result<()> {
        self.fake_accuracy = saved.get("fake_accuracy")?;
        self.samples = saved.tensors().next().map(|(_, samples)| samples.copy());
        Ok(())
    }
}
