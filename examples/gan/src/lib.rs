//! A generative adversarial network (Goodfellow et al., 2014): its two parts train in turn, each with an optimizer of
//! its own, and each turn is an operation that hooks of any crate can stand at.

use trainer::prelude::*;

/// How many numbers the generator makes a sample of.
const LATENT: i64 = 16;

/// The discriminator is asked to be this sure of a real sample, not more: one-sided label smoothing.
const SMOOTHED: f64 = 0.9;

trainer::lifecycle! {
    within step by Gan {
        /// The discriminator learns to tell real samples from generated ones.
        operation discriminator_step: batch in train {
            again pred;
            again loss;
            again backward;
            again opt_step;
            again zero_grad;
        }

        /// The generator learns to make samples that the discriminator takes for real.
        operation generator_step: batch in train {
            again pred;
            again loss;
            again backward;
            again opt_step;
            again zero_grad;
        }
    }
}

/// A generator and a discriminator, both MLPs. A batch is real samples, one a row, of values from 0 to 1.
///
/// Its optimizers are those of the parts `generator` and `discriminator`.
#[derive(Debug)]
pub struct Gan {
    vars: nn::VarStore,
    generator: nn::SequentialT,
    discriminator: nn::SequentialT,
}

/// The prediction: as many fake samples as the batch has real ones.
#[derive(Debug)]
pub struct Fakes {
    /// The samples.
    pub samples: Tensor,
    /// What the discriminator says of each: above 0 it takes it for real.
    pub logits: Tensor,
}

impl Gan {
    /// Of samples with so many values.
    #[must_use]
    pub fn new(vars: nn::VarStore, values: i64) -> Self {
        let generator = generator(&(vars.root() / "generator"), values);
        let discriminator = discriminator(&(vars.root() / "discriminator"), values);
        Gan { vars, generator, discriminator }
    }

    /// New samples.
    pub fn generate(&self, count: i64, mode: Mode) -> Tensor {
        let noise = Tensor::randn([count, LATENT], (Kind::Float, self.vars.device()));
        noise.apply_t(&self.generator, mode == Mode::Train)
    }

    fn discriminate(&self, samples: &Tensor, mode: Mode) -> Tensor {
        samples.apply_t(&self.discriminator, mode == Mode::Train)
    }
}

impl Task for Gan {
    type Batch = Tensor;
    type Pred = Fakes;

    fn vars(&self) -> &nn::VarStore {
        &self.vars
    }

    fn pred(&mut self, real: &Tensor, mode: Mode) -> Result<Fakes> {
        let samples = self.generate(real.size()[0], mode);
        Ok(Fakes { logits: self.discriminate(&samples, mode), samples })
    }

    /// For evaluation: how far the fakes are from the real samples, as one set from the other. It tells both samples
    /// that look like nothing real and samples that all look like the same.
    fn loss(&mut self, fakes: &Fakes, real: &Tensor) -> Result<Tensor> {
        Ok(energy_distance(&fakes.samples, real))
    }

    fn train_step<'s>(step: &mut TrainStep<'s, Self>) -> Result<StepDone<'s>> {
        let discriminator = step.run::<DiscriminatorStep, _>(|step| {
            let predicted = step.pred_with(|gan, real| {
                // Detached: the generator's turn is the next.
                let samples = gan.generate(real.size()[0], Mode::Train).detach();
                Ok(Fakes { logits: gan.discriminate(&samples, Mode::Train), samples })
            })?;
            let scored = step.loss_with(predicted, |gan, fakes, real| {
                let of_real = cross_entropy(&gan.discriminate(real, Mode::Train), SMOOTHED);
                Ok(of_real + cross_entropy(&fakes.logits, 0.0))
            })?;
            let differentiated = step.backward_of("discriminator", scored)?;
            step.opt_step(differentiated)
        })?;
        let generator = step.run::<GeneratorStep, _>(|step| {
            let predicted = step.pred()?;
            // The non-saturating loss: it has a gradient also where the discriminator is sure.
            let scored = step.loss_with(predicted, |_, fakes, _| Ok(cross_entropy(&fakes.logits, 1.0)))?;
            let differentiated = step.backward_of("generator", scored)?;
            step.opt_step(differentiated)
        })?;
        // A hook may skip one of them, and then the other ends the step.
        generator.or(discriminator).ok_or_else(|| Error::msg("hooks skipped both halves of a step"))
    }
}

fn generator(root: &nn::Path<'_>, values: i64) -> nn::SequentialT {
    nn::seq_t()
        .add(nn::linear(root / "fc1", LATENT, 128, Default::default()))
        .add(nn::batch_norm1d(root / "bn1", 128, Default::default()))
        .add_fn(Tensor::relu)
        .add(nn::linear(root / "fc2", 128, 128, Default::default()))
        .add(nn::batch_norm1d(root / "bn2", 128, Default::default()))
        .add_fn(Tensor::relu)
        .add(nn::linear(root / "fc3", 128, values, Default::default()))
        .add_fn(Tensor::sigmoid)
}

fn discriminator(root: &nn::Path<'_>, values: i64) -> nn::SequentialT {
    nn::seq_t()
        .add(nn::linear(root / "fc1", values, 128, Default::default()))
        .add_fn_t(|hidden, train| hidden.leaky_relu().dropout(0.2, train))
        .add(nn::linear(root / "fc2", 128, 128, Default::default()))
        .add_fn_t(|hidden, train| hidden.leaky_relu().dropout(0.2, train))
        .add(nn::linear(root / "fc3", 128, 1, Default::default()))
}

/// The binary cross-entropy of logits that all have the same target.
fn cross_entropy(logits: &Tensor, target: f64) -> Tensor {
    let targets = logits.full_like(target);
    logits.binary_cross_entropy_with_logits::<Tensor>(&targets, None, None, Reduction::Mean)
}

/// The energy distance of two sets of samples (Székely and Rizzo, 2013): 0 if they are the same.
fn energy_distance(one: &Tensor, other: &Tensor) -> Tensor {
    mean_distance(one, other) * 2.0 - mean_distance(one, one) - mean_distance(other, other)
}

/// The mean distance of a sample of the one set to a sample of the other.
pub fn mean_distance(one: &Tensor, other: &Tensor) -> Tensor {
    Tensor::cdist(one, other, 2.0, None).mean(Kind::Float)
}
