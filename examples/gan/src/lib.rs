//! A generative adversarial network (Goodfellow et al., 2014). Its two parts train in turn, each
//! with its own optimizer, and each turn is an operation that hooks of any crate can observe or
//! wrap.

use trainer::prelude::*;

/// The number of random values that the generator needs to make a sample.
const LATENT: i64 = 16;

/// The discriminator's target for real samples: less than 1, for one-sided label smoothing.
const SMOOTHED: f64 = 0.9;

trainer::lifecycle! {
    within step by Gan {
        /// The discriminator learns to distinguish real samples from generated ones.
        operation discriminator_step: batch in train {
            again pred;
            again loss;
            again backward;
            again opt_step;
            again zero_grad;
        }

        /// The generator learns to make samples that the discriminator classifies as real.
        operation generator_step: batch in train {
            again pred;
            again loss;
            again backward;
            again opt_step;
            again zero_grad;
        }
    }
}

/// A generator and a discriminator, both MLPs. A batch is a tensor of real samples, one per row,
/// with values from 0 to 1.
///
/// Training uses two optimizers: one for the part `generator`, and one for `discriminator`.
#[derive(Debug)]
pub struct Gan {
    vars: nn::VarStore,
    generator: nn::SequentialT,
    discriminator: nn::SequentialT,
}

/// The output of the forward pass: one generated sample for each real sample of the batch.
#[derive(Debug)]
pub struct Fakes {
    /// The generated samples, one per row.
    pub samples: Tensor,
    /// The discriminator's logit for each sample: above 0 if it classifies the sample as real.
    pub logits: Tensor,
}

impl Gan {
    /// Creates both networks for samples of `values` numbers.
    #[must_use]
    pub fn new(vars: nn::VarStore, values: i64) -> Self {
        let generator = generator(&(vars.root() / "generator"), values);
        let discriminator = discriminator(&(vars.root() / "discriminator"), values);
        Gan { vars, generator, discriminator }
    }

    /// Generates `count` new samples.
    pub fn generate(&self, count: i64, mode: Mode) -> Tensor {
        let noise = Tensor::randn([count, LATENT], (Kind::Float, self.vars.device()));
        noise.apply_t(&self.generator, mode == Mode::Train)
    }

    /// Returns the discriminator's logits.
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

    /// Returns the energy distance between the generated and the real samples, for evaluation. It
    /// is large if the generated samples do not resemble real ones, or if they all look the same.
    fn loss(&mut self, fakes: &Fakes, real: &Tensor) -> Result<Tensor> {
        Ok(energy_distance(&fakes.samples, real))
    }

    fn train_step<'s>(step: &mut TrainStep<'s, Self>) -> Result<StepDone<'s>> {
        let discriminator = step.run::<DiscriminatorStep, _>(|step| {
            let forward = step.pred_with(|gan, real| {
                // Detached, because this operation does not train the generator.
                let samples = gan.generate(real.size()[0], Mode::Train).detach();
                Ok(Fakes { logits: gan.discriminate(&samples, Mode::Train), samples })
            })?;
            let loss = step.loss_with(forward, |gan, fakes, real| {
                let of_real = cross_entropy(&gan.discriminate(real, Mode::Train), SMOOTHED);
                Ok(of_real + cross_entropy(&fakes.logits, 0.0))
            })?;
            let gradients = step.backward_of("discriminator", loss)?;
            step.opt_step(gradients)
        })?;
        let generator = step.run::<GeneratorStep, _>(|step| {
            let forward = step.pred()?;
            // The non-saturating loss: its gradient does not vanish when the discriminator is
            // confident.
            let loss = step.loss_with(forward, |_, fakes, _| Ok(cross_entropy(&fakes.logits, 1.0)))?;
            let gradients = step.backward_of("generator", loss)?;
            step.opt_step(gradients)
        })?;
        // A hook may skip one of the two operations; the other one then completes the step.
        generator.or(discriminator).ok_or_else(|| {
            Error::msg(
                "hooks skipped both `discriminator_step` and `generator_step`: a step needs one of them",
            )
        })
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

/// Returns the mean binary cross-entropy of logits that all have the same target.
fn cross_entropy(logits: &Tensor, target: f64) -> Tensor {
    let targets = logits.full_like(target);
    logits.binary_cross_entropy_with_logits::<Tensor>(&targets, None, None, Reduction::Mean)
}

/// Returns the energy distance between two sets of samples (Székely and Rizzo, 2013). It is 0 if
/// the sets are equal.
fn energy_distance(one: &Tensor, other: &Tensor) -> Tensor {
    mean_distance(one, other) * 2.0 - mean_distance(one, one) - mean_distance(other, other)
}

/// Returns the mean distance between a sample of one set and a sample of the other.
pub fn mean_distance(one: &Tensor, other: &Tensor) -> Tensor {
    Tensor::cdist(one, other, 2.0, None).mean(Kind::Float)
}
